// Package etcd runs one member of an etcd cluster in this process.
//
// Starting a member has several stages, because etcd reports many problems by waiting forever, by panicking or only in
// its log:
//
//   - checkDirectory checks permissions, lock and meta pages of the data directory, and returns ErrDataDirectory with
//     advice.
//   - admit compares the data directory with what is known about the member, and returns ErrLost if the data is not what the
//     member has voted with: see "Identity".
//   - The local socket is prepared. A member without it works, but 'quorate etcd' cannot reach it by its data directory.
//   - join starts etcd, and retries for joinTimeout while the cluster that the member joins does not answer or has not
//     agreed on its version. launch runs etcd's start on a goroutine, recovers its panics, and stops an etcd that starts
//     after ctx has ended.
//   - elect makes the only voter of a cluster campaign at once, instead of after an election timeout.
//   - awaitReady closes Ready when the member is a voter and has served one linearizable read. A learner waits here for
//     its promotion.
//
// Stop transfers leadership first, so that the cluster does not wait for an election timeout.
//
// # Identity
//
// Raft relies on every voter remembering its votes and the entries that it has acknowledged. A voter that starts again with
// less than that can help to elect a leader that lacks acknowledged writes, and no other member can notice. Therefore each
// data directory has an identity (member.json): the member's name, its volume, a random incarnation, and whether etcd has
// started on it. The same identity is written outside the volume, to the directory of config.MemberRecord, if there is one;
// the operator mounts an emptyDir volume there, which lives as long as the pod. Next to it, the member keeps its progress: the
// newest entry of its log that is on disk. The operator adds what it knows when it creates a pod: the volume, the member's ID,
// and an entry that the member has acknowledged.
//
// evidence.contradiction compares all of these before etcd starts, and is a pure function. A member starts on a directory
// without a write-ahead log only if nothing says that it has run before, and on an existing one only if the log is its own and
// contains the entries that it is known to have acknowledged. Data of a release that recorded no identity is adopted.
package etcd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"go.etcd.io/etcd/client/pkg/v3/types"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"

	"quorate.dev/apiserver/config"
)

const (
	// pollInterval is the interval at which conditions are checked for which etcd has no notification.
	pollInterval = 5 * time.Millisecond
	// joinTimeout bounds how long a member waits for the cluster that it joins; joinInterval is the delay between
	// attempts.
	joinTimeout  = 15 * time.Second
	joinInterval = 250 * time.Millisecond
)

// Member is a running member.
type Member struct {
	log    logr.Logger
	etcd   *embed.Etcd
	server *etcdserver.EtcdServer
	client *clientv3.Client
	socket socketAddress

	directory string               // of the data
	record    string               // directory outside the volume for the member's record; "": none
	disk      atomic.Pointer[disk] // nil: unknown
	allocated os.FileInfo          // database file whose disk space is allocated; used by watchSpace only

	ready    chan struct{}
	failures chan error
	stop     context.CancelFunc
	running  sync.WaitGroup

	stopOnce sync.Once
	stopping chan struct{}
	stopped  chan struct{}
}

// Option configures a member.
type Option func(*options)

type options struct {
	log   logr.Logger
	alone bool
}

// WithLogger sets the logger of a member. The default discards all messages.
func WithLogger(log logr.Logger) Option { return func(o *options) { o.log = log } }

// WithoutFormerMembers makes the member the only one of its cluster: etcd's --force-new-cluster. It drops entries of its
// log that it does not know to be committed. All other members must have stopped permanently.
func WithoutFormerMembers() Option { return func(o *options) { o.alone = true } }

// Start starts a member on its data directory and returns when it takes part in raft, or with an error when ctx ends.
// The member can serve requests when Ready is closed.
func Start(ctx context.Context, member config.Member, opts ...Option) (*Member, error) {
	o := options{log: logr.Discard()}
	for _, option := range opts {
		option(&o)
	}
	if err := member.Validate(); err != nil {
		return nil, err
	}
	if err := checkDirectory(member.DataDirectory); err != nil {
		return nil, err
	}
	own, err := o.admit(member)
	if err != nil {
		return nil, err
	}
	socket, err := prepareSocket(member.DataDirectory)
	if err != nil {
		o.log.Error(err, "Failed to create the local socket; 'quorate etcd' cannot reach this member by its data directory")
	}
	started, err := begin(ctx, member, socket, o)
	if err != nil {
		socket.close()
		return nil, err
	}
	if err := o.confirm(member, own); err != nil {
		started.Close()
		socket.close()
		return nil, err
	}
	background, cancel := context.WithCancel(context.Background())
	m := &Member{
		log: o.log, etcd: started, server: started.Server, client: v3client.New(started.Server), socket: socket, stop: cancel,
		ready: make(chan struct{}), failures: make(chan error, 1),
		stopping: make(chan struct{}), stopped: make(chan struct{}), directory: member.DataDirectory,
		record: member.Record.Directory,
	}
	m.measureDisk()
	m.running.Go(func() { m.elect(background) })
	m.running.Go(func() { m.awaitReady(background) })
	m.running.Go(func() { m.watchSpace(background) })
	if m.record != "" {
		m.running.Go(func() { m.recordProgress(background) })
	}
	m.running.Go(m.awaitFailure)
	return m, nil
}

// admit returns the zero identity of a member that starts without its former members: it is not a voter of their cluster.
func (o options) admit(member config.Member) (identity, error) {
	if o.alone {
		return identity{}, nil
	}
	return admit(member)
}

func (o options) confirm(member config.Member, own identity) error {
	if o.alone {
		return nil
	}
	return confirm(member, own)
}

// begin starts etcd.
func begin(ctx context.Context, member config.Member, socket socketAddress, o options) (*embed.Etcd, error) {
	configuration, err := configure(member, socket, o.log)
	if err != nil {
		return nil, err
	}
	configuration.ForceNewCluster = o.alone
	started, err := join(ctx, configuration, o.log)
	if err != nil {
		return nil, explain(member.DataDirectory, err)
	}
	return started, nil
}

// join starts etcd. It retries for joinTimeout while no member of the cluster answers or the cluster has not agreed on
// its version, which takes a new cluster some seconds.
func join(ctx context.Context, configuration *embed.Config, log logr.Logger) (*embed.Etcd, error) {
	patience := time.Now().Add(joinTimeout)
	for {
		started, err := launch(ctx, configuration)
		if err == nil || !joinsLater(err) || time.Now().After(patience) {
			return started, err
		}
		log.Info("Failed to join the etcd cluster; retrying", "reason", err.Error())
		select {
		case <-time.After(joinInterval):
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}
}

// launch starts etcd. If ctx ends first, etcd is stopped when its start returns.
func launch(ctx context.Context, configuration *embed.Config) (*embed.Etcd, error) {
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	type result struct {
		etcd *embed.Etcd
		err  error
	}
	results := make(chan result, 1)
	go func() {
		var r result
		defer func() { results <- r }()
		defer func() {
			if reason := recover(); reason != nil { // etcd panics on a data directory that it cannot read
				r.err = fmt.Errorf("%w: %v", errPanicked, reason)
			}
		}()
		r.etcd, r.err = embed.StartEtcd(configuration)
	}()
	select {
	case r := <-results:
		return r.etcd, r.err
	case <-ctx.Done():
		go func() {
			if r := <-results; r.etcd != nil {
				r.etcd.Close()
			}
		}()
		return nil, fmt.Errorf("etcd did not start in time: %w", ctx.Err())
	}
}

// Client returns an in-process client of the member. It need not be closed.
func (m *Member) Client() *clientv3.Client { return m.client }

// Ready returns a channel that is closed when the member is a voter and has served a linearizable read.
func (m *Member) Ready() <-chan struct{} { return m.ready }

// LeaderChanged returns a channel that is closed when the member next learns of another leader.
func (m *Member) LeaderChanged() <-chan struct{} { return m.server.LeaderChangedNotify() }

// Err returns a channel that delivers the error if the member stops unexpectedly, and is closed when it has stopped.
func (m *Member) Err() <-chan error { return m.failures }

// Check does a linearizable read. It succeeds if the member is a voter and the cluster has a quorum.
func (m *Member) Check(ctx context.Context) error {
	if err := m.server.LinearizableReadNotify(ctx); err != nil {
		return fmt.Errorf("linearizable read: %w", err)
	}
	if !m.voter() {
		return errors.New("the etcd member is a learner")
	}
	return nil
}

func (m *Member) onlyVoter() bool { return len(m.voters()) == 1 && m.voter() }

// voter reports whether this member is a voter in its own, possibly stale, member list.
func (m *Member) voter() bool { return slices.Contains(m.voters(), m.server.MemberID()) }

func (m *Member) voters() []types.ID {
	var ids []types.ID
	for _, member := range m.server.Cluster().Members() {
		if !member.IsLearner {
			ids = append(ids, member.ID)
		}
	}
	return ids
}

// awaitReady closes ready when Check succeeds. It polls because etcd has no notification of a learner's promotion.
func (m *Member) awaitReady(ctx context.Context) {
	select {
	case <-m.server.ReadyNotify():
	case <-ctx.Done():
		return
	}
	for interval := pollInterval; m.Check(ctx) != nil; interval = min(2*interval, 200*time.Millisecond) {
		select {
		case <-time.After(interval):
		case <-ctx.Done():
			return
		}
	}
	close(m.ready)
}

// awaitFailure reports a stop that Stop did not cause.
func (m *Member) awaitFailure() {
	defer close(m.failures)
	select {
	case err, ok := <-m.etcd.Err():
		if ok {
			m.failures <- fmt.Errorf("the etcd member failed: %w", err)
		}
	case <-m.server.StopNotify():
		select {
		case <-m.stopping:
		default:
			m.failures <- errors.New("the etcd member stopped; it may have been removed from the cluster")
		}
	}
}

// MoveLeadership transfers leadership to another started voter, if this member is the leader and there is one. It skips
// voters that do not take it within an election timeout.
func (m *Member) MoveLeadership(ctx context.Context) error {
	self := m.server.MemberID()
	failure := errors.New("no other voter has started")
	for _, member := range m.server.Cluster().Members() {
		if m.server.Leader() != self || m.onlyVoter() {
			return nil
		}
		if member.ID == self || member.IsLearner || !member.IsStarted() {
			continue
		}
		limited, cancel := context.WithTimeout(ctx, m.etcd.Server.Cfg.ElectionTimeout())
		failure = m.server.MoveLeader(limited, uint64(self), uint64(member.ID))
		cancel()
		if failure == nil {
			return nil
		}
	}
	return fmt.Errorf("transfer leadership: %w", failure)
}

// Stop transfers leadership and stops the member. It returns when everything is on disk, or when ctx ends.
func (m *Member) Stop(ctx context.Context) error {
	m.stopOnce.Do(func() { go m.shutDown(ctx) })
	select {
	case <-m.stopped:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("stop the etcd member: %w", ctx.Err())
	}
}

func (m *Member) shutDown(ctx context.Context) {
	defer close(m.stopped)
	if err := m.MoveLeadership(ctx); err != nil {
		m.log.Info("Failed to transfer leadership; the other members will elect a leader", "reason", err.Error())
	}
	close(m.stopping)
	m.stop()
	m.client.Close()
	m.server.HardStop() // not Stop, which would try to transfer leadership again and wait seconds for missing voters
	m.etcd.Close()
	m.socket.close()
	m.running.Wait()
}
