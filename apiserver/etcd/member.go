// Package etcd runs one member of an etcd cluster in this process.
//
// Start runs several stages in order, because etcd reports many problems by waiting without limit, by panicking or only
// in its log:
//
//   - checkDirectory checks permissions, lock and meta pages of the data directory, and returns ErrDataDirectory with
//     advice.
//   - admit checks that the data directory contains the votes and entries that the member has sent to other members,
//     and returns ErrLost if it does not: see "Identity".
//   - The local socket is created. Without it, the member works, but 'quorate etcd' cannot find it by its data
//     directory.
//   - join starts etcd. It retries for joinTimeout while the cluster that the member joins does not respond or has
//     not agreed on its version. launch runs etcd's start in a goroutine, recovers its panics, and stops an etcd that
//     starts after ctx has ended.
//   - elect lets the only voter of a cluster campaign immediately, instead of after an election timeout.
//   - awaitReady closes Ready when the member is a voter and has served one linearizable read. A learner waits here for
//     its promotion.
//
// Stop transfers leadership first, so that the other members need not wait for an election timeout.
//
// # Identity
//
// Raft relies on every voter remembering its votes and the entries that it has acknowledged. A voter that starts again
// without some of them can help to elect a leader that lacks acknowledged writes, and no other member can detect it.
// Therefore each data directory has an identity (member.json): the member's name, its volume, a random incarnation, and
// whether etcd has started with it. If config.MemberRecord has a directory, the same identity is written there, outside
// the volume; the operator mounts an emptyDir volume, which is deleted with the pod. In this directory, the member also
// records its progress: the newest entry of its log that is on disk. When the operator creates a pod, it adds the
// expected volume, the member's ID, and an entry that the member has acknowledged.
//
// Before etcd starts, evidence.contradiction, a pure function, compares this information. A member starts with a
// directory without a write-ahead log only if nothing shows that it has run before. It starts with an existing log only
// if it is the member's own log and contains all entries that the member is known to have acknowledged. Data of a
// release without identities is accepted and gets an identity.
//
// # Lost writes
//
// If a volume is reset to an earlier state, and no information outside it shows this, the member starts, votes, and can
// elect a leader that lacks acknowledged writes. Raft on a member that has these writes ignores the leader's entries,
// or replaces the log with a snapshot. Therefore a member compares its log with the leader's at the start, after
// elections and before snapshots (compareWith):
//
//   - The member first determines the last entry that it knows to be committed, from its log and its database.
//   - The leader then does a linearizable read, and reports the terms of its log and its applied index (termReport).
//     By Leader Completeness, the report contains every entry that was committed before the request, unless a member
//     has lost entries or votes.
//   - If the report lacks the entry, the member stops with ErrWritesLost. Its data is not changed, and it does not
//     start again.
//
// Invariants: A ledger attributes a term to an entry only if the entry is in the write-ahead log, was applied while the
// leader of the log's last term had not changed, or is in the database or the ledger's file with this term. The log may
// lack the last of these entries after a crash, because etcd applies an entry while it writes the entry to the log. A
// leader reports only terms that it has read since its election.
// Therefore a member whose volume is intact never stops. While a leader does not respond, a member that needs the
// comparison does not become ready and rejects snapshots, but it votes: otherwise it would prolong an outage of other
// members. etcd's peer listeners have no hook for this comparison; therefore type peers serves the peer URLs and calls
// etcd's handler.
//
// # Damage
//
// Voters whose logs are equal must have equal data. They compare hashes of the data at a common revision (compareData).
// A member that differs from a majority stops with ErrDamaged; decide is a pure function that lets at most one member
// stop at a time.
package etcd

import (
	"context"
	"crypto/rand"
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
	peers  *peers
	ledger *ledger
	hasher *hasher
	report *reporter

	background context.Context //nolint:containedctx // ends when the member stops; a request of a peer starts work that outlives it

	directory string               // data directory
	record    string               // directory outside the volume for the member's record; "": none
	disk      atomic.Pointer[disk] // nil: unknown
	allocated os.FileInfo          // database file whose disk space is allocated; used by watchSpace only

	ready    chan struct{}
	failures chan error
	compared chan struct{} // closed when the log has been compared with a leader's log, or needs no comparison
	refused  atomic.Bool
	refusals chan error // receives the error with which the member stops itself
	stop     context.CancelFunc
	running  sync.WaitGroup

	stopOnce sync.Once
	stopping chan struct{}
	stopped  chan struct{}
}

// Option configures a member.
type Option func(*options)

type options struct {
	log       logr.Logger
	alone     bool
	hashDelay time.Duration // time until the first comparison of hashes of the data
	hashRetry time.Duration // time until the next comparison after one without a result
}

// WithLogger sets the logger of a member. The default discards all messages.
func WithLogger(log logr.Logger) Option { return func(o *options) { o.log = log } }

// WithoutFormerMembers removes all other members from the member list, like etcd's --force-new-cluster. Entries of the
// log that the member does not know to be committed are dropped. All other members must have stopped permanently.
func WithoutFormerMembers() Option { return func(o *options) { o.alone = true } }

// Start starts a member with its data directory. It returns when the member participates in raft, or with an error when
// ctx ends. The member can serve requests when Ready is closed.
func Start(ctx context.Context, member config.Member, opts ...Option) (*Member, error) {
	o := options{log: logr.Discard(), hashDelay: hashDelay, hashRetry: hashRetry}
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
	if err := o.refusal(member.DataDirectory); err != nil {
		return nil, fmt.Errorf("%w %s: %w", ErrDataDirectory, member.DataDirectory, err)
	}
	socket, err := prepareSocket(member.DataDirectory)
	if err != nil {
		o.log.Error(err, "Failed to create the local socket; 'quorate etcd' cannot reach this member by its data directory")
	}
	configuration, err := configure(member, socket, o.log)
	if err != nil {
		socket.close()
		return nil, err
	}
	configuration.ForceNewCluster = o.alone
	report := &reporter{run: rand.Text()}
	configuration.ServiceRegister = report.register
	peers, err := listenPeers(configuration)
	if err != nil {
		socket.close()
		return nil, err
	}
	stored := appliedIn(databaseOf(member.DataDirectory))
	markOpening(databaseOf(member.DataDirectory))
	started, err := begin(ctx, configuration, o.log)
	markOpened(databaseOf(member.DataDirectory))
	if err != nil {
		peers.close()
		socket.close()
		return nil, err
	}
	if err := o.confirm(member, own); err != nil {
		started.Close()
		peers.close()
		socket.close()
		return nil, err
	}
	background, cancel := context.WithCancel(context.Background())
	m := &Member{
		log: o.log, etcd: started, server: started.Server, client: v3client.New(started.Server), socket: socket, stop: cancel,
		background: background, peers: peers, report: report, ledger: newLedger(member.DataDirectory, started.Server, stored),
		ready: make(chan struct{}), failures: make(chan error, 1), compared: make(chan struct{}),
		refusals: make(chan error, 1), stopping: make(chan struct{}), stopped: make(chan struct{}),
		directory: member.DataDirectory, record: member.Record.Directory,
	}
	m.hasher = &hasher{client: m.client}
	m.peers.serve(m, started.GetLogger())
	m.measureDisk()
	m.running.Go(func() { m.elect(background) })
	m.running.Go(func() { m.awaitReady(background) })
	m.running.Go(func() { m.watchSpace(background) })
	if len(member.ListenPeerURLs) > 0 {
		m.running.Go(func() { m.ledger.keep(background) })
		m.running.Go(func() { m.watchElections(background) })
		m.running.Go(func() { m.watchData(background, o.hashDelay, o.hashRetry) })
	} else {
		never := make(<-chan struct{})
		m.report.agreed.Store(&never)
		close(m.compared)
	}
	if m.record != "" {
		m.running.Go(func() { m.recordProgress(background) })
	}
	m.running.Go(m.awaitFailure)
	return m, nil
}

// admit calls the package's admit. It returns the zero identity for a member that starts without its former members,
// because that member is not a voter of their cluster.
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

// refusal returns the error with which the member has stopped permanently. For a member that starts without
// its former members, it instead records that the member must not start with them again.
func (o options) refusal(directory string) error {
	if o.alone {
		return markRecovered(directory)
	}
	return readRefusal(directory)
}

// begin starts etcd.
func begin(ctx context.Context, configuration *embed.Config, log logr.Logger) (*embed.Etcd, error) {
	started, err := join(ctx, configuration, log)
	if err != nil {
		return nil, explain(configuration.Dir, err)
	}
	return started, nil
}

// join starts etcd. It retries for joinTimeout while no member of the cluster responds, or while the cluster has not
// agreed on its version, which takes a new cluster some seconds.
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
				r.err = panicked(reason)
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

// LeaderChanged returns a channel that is closed at the next change of the leader that the member observes.
func (m *Member) LeaderChanged() <-chan struct{} { return m.server.LeaderChangedNotify() }

// Err returns a channel that delivers the error if the member stops unexpectedly. The channel is closed when the member
// has stopped.
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
	select {
	case <-m.compared:
		close(m.ready)
	case <-ctx.Done():
	}
}

// awaitFailure delivers the error on the channel of Err if the member stops without a call of Stop.
func (m *Member) awaitFailure() {
	defer close(m.failures)
	select {
	case err := <-m.refusals:
		m.server.HardStop() // the process may need time to stop; the member must not participate in raft until then
		m.failures <- err
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

// MoveLeadership transfers leadership to another started voter if this member is the leader. It tries the other voters
// one after the other, each for an election timeout.
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
	m.peers.close()
	m.socket.close()
	m.running.Wait()
}
