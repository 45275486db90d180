package faults

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/client-go/rest"

	"quorate.dev/test/faults/network"
	"quorate.dev/test/faults/schedule"
	"quorate.dev/test/history/check"
	"quorate.dev/test/upstream"
)

// cluster has replicas, and a steward that replaces members as the operator does.
type cluster struct {
	log            func(format string, arguments ...any)
	begin          time.Time
	setting        schedule.Setting
	flags          []string // further flags of all replicas
	directory      string
	binary         string
	pki            *upstream.PKI
	network127     string // the first three bytes of the addresses, if there are proxies
	initialMembers string // --etcd-initial-cluster
	network        paths
	proxies        *network.Network // the network, or nil if it forwards packets
	hosts          *network.Switch  // the network, or nil if it has proxies
	replicas       []*replica
	configurations []*rest.Config   // of clients, by replica
	clients        []rest.Interface // by replica
	formed         atomic.Bool      // all members have been ready
	calmed         atomic.Bool      // all faults have ended
	running        sync.WaitGroup
	end            context.CancelFunc
	closers        []func() error
	replaced       atomic.Int64
	damage         damage
}

func (c *cluster) logf(format string, arguments ...any) {
	c.log("%6.2fs  "+format, append([]any{time.Since(c.begin).Seconds()}, arguments...)...)
}

// start starts replicas, which stop at the end of the test or by stop.
func (p plan) start(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{log: t.Logf, begin: time.Now(), setting: p.setting, flags: p.flags, directory: t.TempDir()}
	err := c.connect(p.seed)
	if err != nil {
		t.Fatal(err)
	}
	if c.pki, err = upstream.NewPKI(filepath.Join(c.directory, "pki")); err != nil {
		t.Fatal(err)
	}
	if c.binary, err = upstream.Quorate(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	c.end = cancel
	t.Cleanup(c.stop)
	if err := c.create(); err != nil {
		t.Fatal(err)
	}
	c.begin = time.Now()
	for _, r := range c.replicas {
		c.running.Go(func() { r.keep(ctx) })
	}
	if err := c.ready(ctx, patience); err != nil {
		t.Fatal(err)
	}
	c.formed.Store(true)
	c.running.Go(func() { c.operate(ctx) })
	return c
}

// create creates the replicas and their clients.
func (c *cluster) create() error {
	var members []string
	for i := range c.setting.Replicas {
		r, err := newReplica(c, i)
		if err != nil {
			return err
		}
		c.replicas = append(c.replicas, r)
		c.closers = append(c.closers, r.etcd.Close)
		members = append(members, r.member()+"=http://"+r.advertised())
		if err := c.listen(r); err != nil {
			return err
		}
		configuration := c.pki.Admin(1) // Dial overrides the address
		configuration.Dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return c.network.Dial(ctx, clients, i, fmt.Sprintf("%s:%d", r.own(), apiPort))
		}
		client, err := check.NewClient(configuration)
		if err != nil {
			return err
		}
		c.configurations, c.clients = append(c.configurations, configuration), append(c.clients, client)
	}
	c.initialMembers = strings.Join(members, ",")
	return nil
}

// stop stops everything.
func (c *cluster) stop() {
	c.end()
	for _, r := range c.replicas {
		if r.volume != nil {
			r.volume.Halt() // nothing waits for a slow sync
		}
	}
	c.running.Wait()
	c.network.Close()
	for _, closer := range c.closers {
		_ = closer()
	}
}

// ready waits until all replicas are ready.
func (c *cluster) ready(ctx context.Context, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for i, client := range c.clients {
		for {
			err := probe(ctx, client)
			if err == nil {
				break
			}
			if !check.Pause(ctx, 100*time.Millisecond) {
				return fmt.Errorf("replica %d is not ready after %v: %w", i, patience, err)
			}
		}
	}
	return nil
}

func probe(ctx context.Context, client rest.Interface) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := client.Get().AbsPath("/readyz").MaxRetries(0).DoRaw(ctx)
	return err
}

// describe logs what each member reports about itself. Then each process writes the stacks of its goroutines to its
// log, and ends.
func (c *cluster) describe() {
	for _, r := range c.replicas {
		ctx, cancel := context.WithTimeout(context.Background(), callTimeout) //nolint:forbidigo // the context of the run has ended
		status, err := r.etcd.Status(ctx, r.etcd.Endpoints()[0])
		c.logf("replica %d, status: %v, %v", r.index, status, err)
		list, err := r.etcd.MemberList(ctx, clientv3.WithSerializable())
		c.logf("replica %d, members: %v, %v", r.index, list, err)
		cancel()
		if pid := r.pid(); pid != 0 {
			_ = syscall.Kill(pid, syscall.SIGQUIT)
		}
	}
}

// members returns the members that a quorum agrees on.
func (c *cluster) members(ctx context.Context) (*replica, []*etcdserverpb.Member, error) {
	failures := []error{errors.New("no member answers")}
	for _, r := range c.replicas {
		if r.pid() == 0 {
			continue
		}
		limited, cancel := context.WithTimeout(ctx, callTimeout)
		list, err := r.etcd.MemberList(limited)
		cancel()
		if err == nil {
			return r, list.Members, nil
		}
		failures = append(failures, err)
	}
	return nil, nil, errors.Join(failures...)
}

// operate replaces lost members and promotes learners, until ctx ends.
func (c *cluster) operate(ctx context.Context) {
	last := ""
	for check.Pause(ctx, 200*time.Millisecond) {
		for _, r := range c.replicas {
			if !r.mustBeReplaced() {
				continue
			}
			if err := c.replace(ctx, r); err != nil && err.Error() != last {
				last = err.Error()
				c.logf("cannot replace the member of replica %d yet: %v", r.index, err)
			}
		}
		c.promote(ctx)
	}
}

// replace removes the member of a replica and adds another one as a learner, if the others have a quorum.
func (c *cluster) replace(ctx context.Context, r *replica) error {
	via, members, err := c.members(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	url := "http://" + r.advertised()
	for _, m := range members {
		if !slices.Contains(m.PeerURLs, url) {
			continue
		}
		if m.Name == "" && m.IsLearner { // added by an attempt whose outcome is unknown
			return r.join(members, m.ID)
		}
		removed, err := via.etcd.MemberRemove(ctx, m.ID)
		if err != nil {
			return fmt.Errorf("remove member %x: %w", m.ID, err)
		}
		members = removed.Members
	}
	added, err := c.addLearner(ctx, via, url)
	if err != nil {
		return fmt.Errorf("add a learner: %w", err)
	}
	return r.join(added.Members, added.Member.ID)
}

// addLearner adds a learner through a member. If the member returns ErrUnhealthy, addLearner sends the request to the
// other running members, like the operator: the member may mark a connected peer as inactive.
func (c *cluster) addLearner(ctx context.Context, via *replica, url string) (*clientv3.MemberAddResponse, error) {
	added, err := via.etcd.MemberAddAsLearner(ctx, []string{url})
	for _, r := range c.replicas {
		if !errors.Is(err, rpctypes.ErrUnhealthy) {
			break
		}
		if r != via && r.pid() != 0 {
			added, err = r.etcd.MemberAddAsLearner(ctx, []string{url})
		}
	}
	return added, err
}

// join starts the replica as the member with an ID.
func (r *replica) join(members []*etcdserverpb.Member, id uint64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	err := r.fresh(func(name string) string {
		var all []string
		for _, m := range members {
			if m.ID == id {
				m.Name = name
			}
			for _, url := range m.PeerURLs {
				if m.Name != "" {
					all = append(all, m.Name+"="+url)
				}
			}
		}
		return strings.Join(all, ",")
	})
	if err != nil {
		return err
	}
	r.lost, r.refused = false, false
	r.replaced.Add(1)
	r.damage.end(r)
	r.logf("replica %d has a new member, %s", r.index, r.member())
	r.notify()
	return nil
}

// promote tries to promote learners.
func (c *cluster) promote(ctx context.Context) {
	via, members, err := c.members(ctx)
	if err != nil {
		return
	}
	for _, m := range members {
		if m.IsLearner {
			limited, cancel := context.WithTimeout(ctx, callTimeout)
			_, _ = via.etcd.MemberPromote(limited, m.ID) // it may not have caught up
			cancel()
		}
	}
}

// whole reports whether all members are voters with the same leader, so that the data of one may be destroyed.
func (c *cluster) whole(ctx context.Context) error {
	_, members, err := c.members(ctx)
	if err != nil {
		return err
	}
	for _, m := range members {
		if m.IsLearner || m.Name == "" {
			return fmt.Errorf("member %x has not joined", m.ID)
		}
	}
	if len(members) != c.setting.Replicas {
		return fmt.Errorf("there are %d members", len(members))
	}
	var applied []uint64
	for _, r := range c.replicas {
		limited, cancel := context.WithTimeout(ctx, callTimeout)
		status, err := r.etcd.Status(limited, r.etcd.Endpoints()[0])
		cancel()
		if err != nil {
			return err
		}
		if status.IsLearner { // its member was replaced after the members were read
			return fmt.Errorf("member %x has not joined", status.Header.MemberId)
		}
		applied = append(applied, status.RaftAppliedIndex)
	}
	if slices.Max(applied)-slices.Min(applied) > 1000 {
		return fmt.Errorf("a member lags: the applied entries are %v", applied)
	}
	return nil
}

// leader returns the replica that leads, or 0 if no member knows the leader.
func (c *cluster) leader(ctx context.Context) int {
	for i, r := range c.replicas {
		if r.pid() == 0 {
			continue
		}
		limited, cancel := context.WithTimeout(ctx, callTimeout/10)
		status, err := r.etcd.Status(limited, r.etcd.Endpoints()[0])
		cancel()
		if err == nil && status.Leader == status.Header.MemberId {
			return i
		}
	}
	return 0
}
