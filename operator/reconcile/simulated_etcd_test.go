package reconcile

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"quorate.dev/apiserver/config"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/membership"
)

// simulatedEtcd simulates the members of one etcd, with etcd's preconditions for membership changes. Its processes
// serve etcd's gRPC API with TLS, so that the operator uses its real client.
type simulatedEtcd struct {
	mutex     sync.Mutex
	before    func() // called before each membership change; nil: not set
	members   []*simulatedMember
	formed    bool
	nextID    uint64
	disks     map[string]*disk    // by UID of the claim
	processes map[string]*process // by UID of the pod
	committed int64               // revision of the last acknowledged write

	difference  string // the difference of data that all members report
	withoutRuns bool   // the members are of a release that reports nothing
}

type simulatedMember struct {
	id      uint64
	name    string
	peerURL string
	learner bool
	started bool
	leader  bool
}

// disk is the content of a member's volume.
type disk struct {
	member   uint64 // ID of the member that has started on the disk; 0: the disk is empty
	revision int64
}

// process is a running member.
type process struct {
	etcd    *simulatedEtcd
	pod     string
	run     string
	initial []string // names in --etcd-initial-cluster; nil: the member joins an existing cluster
	disk    *disk
	frozen  bool
	server  *grpc.Server
	etcdserverpb.UnimplementedClusterServer
	etcdserverpb.UnimplementedMaintenanceServer
}

func newSimulatedEtcd() *simulatedEtcd {
	return &simulatedEtcd{disks: map[string]*disk{}, processes: map[string]*process{}}
}

// pause calls before, if it is set, and resets it. before may change the cluster.
func (e *simulatedEtcd) pause() {
	e.mutex.Lock()
	before := e.before
	e.before = nil
	e.mutex.Unlock()
	if before != nil {
		before()
	}
}

// serve starts the gRPC server of a member.
func (p *process) serve(address string, certificate tls.Certificate, authority []byte) error {
	clients := x509.NewCertPool()
	if !clients.AppendCertsFromPEM(authority) {
		return errors.New("no authority of clients")
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(address, fmt.Sprint(desired.ClientPort)))
	if err != nil {
		return err
	}
	p.server = grpc.NewServer(grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{certificate}, ClientCAs: clients, ClientAuth: tls.RequireAndVerifyClientCert,
		MinVersion: tls.VersionTLS12,
	})))
	etcdserverpb.RegisterClusterServer(p.server, p)
	etcdserverpb.RegisterMaintenanceServer(p.server, p)
	p.server.RegisterService(&grpc.ServiceDesc{
		ServiceName: config.MemberReportService, HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{MethodName: config.MemberReportName, Handler: p.report}},
	}, p)
	go func() { _ = p.server.Serve(listener) }()
	return nil
}

// member returns the member that a process runs, or nil if the process cannot start with the data on its disk.
func (e *simulatedEtcd) member(p *process) *simulatedMember {
	for _, m := range e.members {
		if m.id == p.disk.member {
			return m
		}
	}
	return nil
}

func (e *simulatedEtcd) named(name string) *simulatedMember {
	for _, m := range e.members {
		if m.name == name {
			return m
		}
	}
	return nil
}

// running returns the process of a member, or nil if none runs.
func (e *simulatedEtcd) running(m *simulatedMember) *process {
	for _, p := range e.processes {
		if !p.frozen && p.disk.member == m.id {
			return p
		}
	}
	return nil
}

func (e *simulatedEtcd) count() (voters, healthy int) {
	for _, m := range e.members {
		if m.learner {
			continue
		}
		voters++
		if e.running(m) != nil {
			healthy++
		}
	}
	return voters, healthy
}

func (e *simulatedEtcd) quorum() bool {
	voters, healthy := e.count()
	return e.formed && healthy >= membership.Quorum(voters)
}

// tick starts members, elects a leader, and replicates one more write if there is a quorum.
func (e *simulatedEtcd) tick() {
	e.form()
	for _, p := range e.processes {
		m := e.named(p.pod)
		if p.disk.member == 0 && p.initial == nil && m != nil && !m.started {
			// A learner gets the leader's data; a member that has started before refuses to start without its data.
			p.disk.member = m.id
		}
		if m := e.member(p); m != nil && !p.frozen {
			m.started = true
		}
	}
	if !e.quorum() {
		return
	}
	e.elect()
	e.committed++
	for _, m := range e.members {
		if p := e.running(m); p != nil {
			p.disk.revision = e.committed
		}
	}
}

// form creates a new etcd from processes with empty disks, once a quorum of their initial members runs. If the operator
// causes that a second time, all data is lost.
func (e *simulatedEtcd) form() {
	for _, p := range e.processes {
		if p.disk.member != 0 || len(p.initial) == 0 {
			continue
		}
		var ready []*process
		for _, other := range e.processes {
			if other.disk.member == 0 && slices.Contains(p.initial, other.pod) && slices.Contains(other.initial, p.pod) {
				ready = append(ready, other)
			}
		}
		if e.formed && e.named(p.pod) != nil { // an initial member that starts after the others have formed the etcd
			p.disk.member = e.named(p.pod).id
		} else if len(ready) >= membership.Quorum(len(p.initial)) {
			e.bootstrap(p.initial)
			p.disk.member = e.named(p.pod).id
		}
	}
}

func (e *simulatedEtcd) bootstrap(names []string) {
	e.members, e.formed = nil, true
	for _, name := range names {
		e.nextID++
		e.members = append(e.members, &simulatedMember{
			id: e.nextID, name: name, peerURL: "https://" + name + ".demo-members.ns.svc:2380",
		})
	}
}

func (e *simulatedEtcd) elect() {
	var best *simulatedMember
	for _, m := range e.members {
		if m.leader && e.running(m) != nil {
			return
		}
	}
	for _, m := range e.members {
		m.leader = false
		if p := e.running(m); p != nil && !m.learner && (best == nil || p.disk.revision > e.running(best).disk.revision) {
			best = m
		}
	}
	best.leader = true
}

// readable returns the newest revision of a healthy voter, or -1 if there is no quorum.
func (e *simulatedEtcd) readable() int64 {
	if !e.quorum() {
		return -1
	}
	newest := int64(0)
	for _, m := range e.members {
		if p := e.running(m); p != nil && !m.learner {
			newest = max(newest, p.disk.revision)
		}
	}
	return newest
}

func (e *simulatedEtcd) list() []*etcdserverpb.Member {
	var list []*etcdserverpb.Member
	for _, m := range e.members {
		entry := &etcdserverpb.Member{ID: m.id, PeerURLs: []string{m.peerURL}, IsLearner: m.learner}
		if m.started {
			entry.Name, entry.ClientURLs = m.name, []string{"https://" + m.name}
		}
		list = append(list, entry)
	}
	return list
}

var errNoLeader = rpctypes.ErrGRPCNoLeader

// usable returns an error unless the process runs a member of an etcd with a quorum.
func (p *process) usable() error {
	if p.frozen || p.etcd.member(p) == nil || !p.etcd.quorum() {
		return errNoLeader
	}
	return nil
}

// MemberList implements etcdserverpb.ClusterServer.
func (p *process) MemberList(
	context.Context, *etcdserverpb.MemberListRequest,
) (*etcdserverpb.MemberListResponse, error) {
	p.etcd.mutex.Lock()
	defer p.etcd.mutex.Unlock()
	if err := p.usable(); err != nil {
		return nil, err
	}
	return &etcdserverpb.MemberListResponse{Header: &etcdserverpb.ResponseHeader{}, Members: p.etcd.list()}, nil
}

// MemberAdd implements etcdserverpb.ClusterServer.
func (p *process) MemberAdd(
	_ context.Context, r *etcdserverpb.MemberAddRequest,
) (*etcdserverpb.MemberAddResponse, error) {
	p.etcd.pause()
	p.etcd.mutex.Lock()
	defer p.etcd.mutex.Unlock()
	if err := p.usable(); err != nil {
		return nil, err
	}
	for _, m := range p.etcd.members {
		switch {
		case m.peerURL == r.PeerURLs[0]:
			return nil, rpctypes.ErrGRPCPeerURLExist
		case m.learner:
			return nil, rpctypes.ErrGRPCTooManyLearners
		}
	}
	name, _, _ := strings.Cut(strings.TrimPrefix(r.PeerURLs[0], "https://"), ".")
	p.etcd.nextID++
	p.etcd.members = append(p.etcd.members, &simulatedMember{
		id: p.etcd.nextID, name: name, peerURL: r.PeerURLs[0], learner: r.IsLearner,
	})
	return &etcdserverpb.MemberAddResponse{Header: &etcdserverpb.ResponseHeader{}}, nil
}

// MemberRemove implements etcdserverpb.ClusterServer with the strict reconfiguration check.
func (p *process) MemberRemove(
	_ context.Context, r *etcdserverpb.MemberRemoveRequest,
) (*etcdserverpb.MemberRemoveResponse, error) {
	p.etcd.pause()
	p.etcd.mutex.Lock()
	defer p.etcd.mutex.Unlock()
	if err := p.usable(); err != nil {
		return nil, err
	}
	e := p.etcd
	at := slices.IndexFunc(e.members, func(m *simulatedMember) bool { return m.id == r.ID })
	if at < 0 {
		return nil, rpctypes.ErrGRPCMemberNotFound
	}
	if m := e.members[at]; !m.learner && e.running(m) != nil {
		if voters, healthy := e.count(); healthy-1 < membership.Quorum(voters-1) {
			return nil, rpctypes.ErrGRPCUnhealthy
		}
	}
	e.members = slices.Delete(e.members, at, at+1)
	return &etcdserverpb.MemberRemoveResponse{Header: &etcdserverpb.ResponseHeader{}}, nil
}

// MemberPromote implements etcdserverpb.ClusterServer.
func (p *process) MemberPromote(
	_ context.Context, r *etcdserverpb.MemberPromoteRequest,
) (*etcdserverpb.MemberPromoteResponse, error) {
	p.etcd.pause()
	p.etcd.mutex.Lock()
	defer p.etcd.mutex.Unlock()
	if err := p.usable(); err != nil {
		return nil, err
	}
	for _, m := range p.etcd.members {
		if m.id != r.ID {
			continue
		}
		if running := p.etcd.running(m); !m.learner || running == nil || running.disk.revision < p.etcd.committed {
			return nil, rpctypes.ErrGRPCLearnerNotReady
		}
		m.learner = false
		return &etcdserverpb.MemberPromoteResponse{Header: &etcdserverpb.ResponseHeader{}}, nil
	}
	return nil, rpctypes.ErrGRPCMemberNotFound
}

// MoveLeader implements etcdserverpb.MaintenanceServer.
func (p *process) MoveLeader(
	_ context.Context, r *etcdserverpb.MoveLeaderRequest,
) (*etcdserverpb.MoveLeaderResponse, error) {
	p.etcd.pause()
	p.etcd.mutex.Lock()
	defer p.etcd.mutex.Unlock()
	if err := p.usable(); err != nil {
		return nil, err
	}
	to := slices.IndexFunc(p.etcd.members, func(m *simulatedMember) bool { return m.id == r.TargetID })
	if to < 0 || p.etcd.members[to].learner || p.etcd.running(p.etcd.members[to]) == nil || !p.etcd.member(p).leader {
		return nil, rpctypes.ErrGRPCNotLeader
	}
	for i, m := range p.etcd.members {
		m.leader = i == to
	}
	return &etcdserverpb.MoveLeaderResponse{Header: &etcdserverpb.ResponseHeader{}}, nil
}

// report implements grpc.MethodHandler.
func (p *process) report(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
	if err := decode(&emptypb.Empty{}); err != nil {
		return nil, err
	}
	p.etcd.mutex.Lock()
	defer p.etcd.mutex.Unlock()
	report := config.MemberReport{Run: p.run, Compared: p.etcd.quorum(), Difference: p.etcd.difference}
	if p.etcd.withoutRuns {
		report = config.MemberReport{}
	}
	return wrapperspb.String(report.String()), nil
}

// Status implements etcdserverpb.MaintenanceServer.
func (p *process) Status(context.Context, *etcdserverpb.StatusRequest) (*etcdserverpb.StatusResponse, error) {
	p.etcd.mutex.Lock()
	defer p.etcd.mutex.Unlock()
	member := p.etcd.member(p)
	if p.frozen || member == nil {
		return nil, errNoLeader
	}
	status := &etcdserverpb.StatusResponse{
		Header: &etcdserverpb.ResponseHeader{MemberId: member.id, Revision: p.disk.revision}, Version: "3.6.0",
		RaftIndex: uint64(p.disk.revision), RaftAppliedIndex: uint64(p.disk.revision),
	}
	for _, m := range p.etcd.members {
		if m.leader && p.etcd.quorum() {
			status.Leader = m.id
		}
	}
	return status, nil
}
