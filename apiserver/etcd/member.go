// Package etcd runs one member of an etcd cluster in this process: it starts, joins, reports its health, hands
// leadership over and stops.
package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
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
	// pollInterval is how often a condition is looked at that etcd does not notify of.
	pollInterval = 5 * time.Millisecond
	// joinPatience is how long a member waits for the cluster it shall join, joinInterval the time between trials.
	joinPatience = 15 * time.Second
	joinInterval = 250 * time.Millisecond
)

// Member is a running member.
type Member struct {
	log    logr.Logger
	etcd   *embed.Etcd
	server *etcdserver.EtcdServer
	client *clientv3.Client
	socket socketAddress

	ready    chan struct{}
	failures chan error
	stop     context.CancelFunc
	running  sync.WaitGroup

	stopOnce sync.Once
	stopping chan struct{}
	stopped  chan struct{}
}

// Option changes how a member runs.
type Option func(*options)

type options struct {
	log logr.Logger
}

// WithLogger makes a member log there. Without it, it is silent.
func WithLogger(log logr.Logger) Option { return func(o *options) { o.log = log } }

// Start starts a member on its data directory and returns once it takes part in the cluster's protocol; Ready
// tells when it can serve. It fails when ctx ends before.
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
	socket, err := prepareSocket(member.DataDirectory)
	if err != nil {
		o.log.Error(err, "'quorate etcd' cannot reach this member by its data directory: the socket cannot be made")
	}
	started, err := begin(ctx, member, socket, o.log)
	if err != nil {
		socket.close()
		return nil, err
	}
	background, cancel := context.WithCancel(context.Background())
	m := &Member{
		log: o.log, etcd: started, server: started.Server, client: v3client.New(started.Server), socket: socket, stop: cancel,
		ready: make(chan struct{}), failures: make(chan error, 1),
		stopping: make(chan struct{}), stopped: make(chan struct{}),
	}
	m.running.Go(func() { m.elect(background) })
	m.running.Go(func() { m.awaitReady(background) })
	m.running.Go(func() { m.watchSpace(background) })
	m.running.Go(m.awaitFailure)
	return m, nil
}

// begin starts etcd.
func begin(ctx context.Context, member config.Member, socket socketAddress, log logr.Logger) (*embed.Etcd, error) {
	configuration, err := configure(member, socket, log)
	if err != nil {
		return nil, err
	}
	started, err := join(ctx, configuration, log)
	if err != nil {
		return nil, explain(member.DataDirectory, err)
	}
	return started, nil
}

// join starts etcd, again and again for a while as long as the cluster is not there yet, or so new that it has
// not agreed on its version, which takes it some seconds.
func join(ctx context.Context, configuration *embed.Config, log logr.Logger) (*embed.Etcd, error) {
	patience := time.Now().Add(joinPatience)
	for {
		started, err := launch(ctx, configuration)
		if err == nil || !joinsLater(err) || time.Now().After(patience) {
			return started, err
		}
		log.Info("The etcd cluster cannot be joined yet; trying again", "reason", err.Error())
		select {
		case <-time.After(joinInterval):
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}
}

// launch starts etcd. If ctx ends first, etcd is stopped again as soon as it lets go.
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
			if reason := recover(); reason != nil { // etcd panics on a data directory it cannot make sense of
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

// Client returns a client that calls the member within this process. It needs no closing.
func (m *Member) Client() *clientv3.Client { return m.client }

// Ready is closed as soon as the member, being a voter, has once answered a linearizable read.
func (m *Member) Ready() <-chan struct{} { return m.ready }

// Err delivers the error that ended the member, if it ended by itself, and is closed when it has ended.
func (m *Member) Err() <-chan error { return m.failures }

// Check does a linearizable read: it succeeds if the member is a voter and sees a leader with a quorum.
func (m *Member) Check(ctx context.Context) error {
	if err := m.server.LinearizableReadNotify(ctx); err != nil {
		return fmt.Errorf("the etcd member cannot read: %w", err)
	}
	if !m.voter() {
		return errors.New("the etcd member is a learner that has not been promoted yet")
	}
	return nil
}

func (m *Member) onlyVoter() bool { return len(m.voters()) == 1 && m.voter() }

// voter tells whether this member votes, as far as it knows.
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

// awaitReady closes ready. A learner waits here for its promotion, of which etcd does not notify.
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

// awaitFailure reports an end that Stop did not bring about.
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

// MoveLeadership hands leadership to another started voter, if this member is the leader and there is one. Voters
// that do not take it within an election timeout are passed over.
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
	return fmt.Errorf("handing leadership over: %w", failure)
}

// Stop hands leadership over and stops the member. It returns when everything is on disk, or when ctx ends.
func (m *Member) Stop(ctx context.Context) error {
	m.stopOnce.Do(func() { go m.shutDown(ctx) })
	select {
	case <-m.stopped:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("stopping the etcd member: %w", ctx.Err())
	}
}

func (m *Member) shutDown(ctx context.Context) {
	defer close(m.stopped)
	if err := m.MoveLeadership(ctx); err != nil {
		m.log.Info("The leadership of etcd was not handed over; another member will be elected", "reason", err.Error())
	}
	close(m.stopping)
	m.stop()
	m.client.Close()
	m.server.HardStop() // leadership has been seen to; etcd's own way waits seconds for voters that are not there
	m.etcd.Close()
	m.socket.close()
	m.running.Wait()
}
