package etcd

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/types"
)

// compareInterval is the delay before the second attempt to compare the log with the leader's. It doubles up to
// compareMaxInterval.
const (
	compareInterval    = 20 * time.Millisecond
	compareMaxInterval = time.Second
)

// termReport is a leader's report about the terms in its log. Invariant: the log contains all entries that were
// committed in the cluster when the report was requested, unless Unconfirmed is set.
type termReport struct {
	Cluster  string      `json:"cluster"`
	Member   string      `json:"member"`
	Name     string      `json:"name"`
	Applied  uint64      `json:"applied"`
	Revision int64       `json:"revision"`
	Terms    termHistory `json:"terms"`
	// Unconfirmed is set if no quorum has confirmed the leader. Terms then has only applied entries, which are
	// committed; later committed entries may be missing.
	Unconfirmed bool `json:"unconfirmed,omitempty"`
}

// lacks reports whether the leader lacks an entry that another member knows to be committed. It returns false if the
// entries whose terms both members know do not decide the question.
func (r termReport) lacks(committed uint64, terms termHistory) bool {
	return !r.Unconfirmed && r.Applied < committed || terms.upTo(committed).contradicts(r.Terms)
}

// serveTerms responds with the termReport of this member, provided that it is the leader. A linearizable read lets a
// quorum confirm the leadership. The read returns after an entry of the leader's term has been committed and applied;
// by then the leader has all entries that were committed before.
func (m *Member) serveTerms(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), peerTimeout/2) // the other member waits for peerTimeout
	defer cancel()
	if m.server.Leader() != m.server.MemberID() {
		http.Error(w, "this member is not the leader", http.StatusConflict)
		return
	}
	err := m.server.LinearizableReadNotify(ctx)
	report := termReport{
		Unconfirmed: err != nil,
		Cluster:     m.server.Cluster().ID().String(), Member: m.server.MemberID().String(), Name: m.server.Cfg.Name,
		Applied: m.server.AppliedIndex(), Revision: m.server.KV().Rev(),
	}
	terms, leading := m.ledger.leading()
	if !leading {
		http.Error(w, "this member has just been elected", http.StatusConflict)
		return
	}
	if report.Terms = terms; err != nil {
		report.Terms = terms.upTo(report.Applied)
	}
	respond(w, report)
}

// errNoLeader is returned while a member does not know a leader with whose log it can compare its own.
var errNoLeader = errors.New("there is no leader")

// errUnconfirmed is returned if no missing entry was found, but no quorum has confirmed the leader.
var errUnconfirmed = errors.New("the leader has no quorum yet")

// compare compares the committed entries of this member with the leader's log. The error wraps ErrWritesLost if the
// leader lacks a committed entry. Any other error means that the comparison was not possible.
func (m *Member) compare(ctx context.Context) error {
	leader := m.server.Leader()
	switch {
	case leader == m.server.MemberID() || m.onlyVoter():
		return nil
	case leader == 0:
		return errNoLeader
	}
	return m.compareWith(ctx, leader, m.peerURLs(leader))
}

func (m *Member) compareWith(ctx context.Context, leader types.ID, urls []string) error {
	ctx, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	// The committed index must be read before the report is requested: the report has all entries that were committed
	// before the request.
	committed, terms, err := m.ledger.committed()
	if err != nil {
		return fmt.Errorf("read the terms of the log: %w", err)
	}
	if committed == 0 {
		return nil // a member that joins has nothing to lose
	}
	revision := m.server.KV().Rev()
	var report termReport
	switch err := m.peers.get(ctx, urls, termsPath, &report); {
	case errors.Is(err, errNotOffered):
		return nil
	case err != nil:
		return fmt.Errorf("request the terms of the leader %s: %w", leader, err)
	case report.Cluster != m.server.Cluster().ID().String() || report.Member != leader.String():
		return fmt.Errorf("the peer URL of the leader %s belongs to member %s of cluster %s", leader,
			report.Member, report.Cluster)
	}
	if report.lacks(committed, terms) {
		return fmt.Errorf("%w: this member has revision %d (entry %d of term %d of the log), but the leader %s has "+
			"revision %d (entry %d), and the logs agree up to entry %d only. The volume of this member may have the only "+
			"copy: keep it",
			ErrWritesLost, revision, committed, terms.term(committed), report.Name, report.Revision, report.Applied,
			terms.upTo(committed).common(report.Terms))
	}
	m.ledger.adopt(report.Terms.upTo(report.Applied))
	if report.Unconfirmed {
		return errUnconfirmed
	}
	return nil
}

// awaitComparison retries compare until the comparison is possible, or until ctx ends. It stops the member if
// acknowledged writes are lost.
func (m *Member) awaitComparison(ctx context.Context) error {
	reported := ""
	for interval := compareInterval; ; interval = min(2*interval, compareMaxInterval) {
		changed := m.server.LeaderChangedNotify()
		err := m.compare(ctx)
		if err == nil {
			m.report.agreed.Store(&changed)
			return nil
		}
		if errors.Is(err, ErrWritesLost) {
			m.refuse(err)
			return err
		}
		if reported != err.Error() && !errors.Is(err, errNoLeader) && ctx.Err() == nil {
			reported = err.Error()
			m.log.Info("Failed to compare the log with the leader's; retrying", "reason", reported)
		}
		select {
		case <-time.After(interval):
		case <-changed:
			interval = compareInterval
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// watchElections compares the log with the leader's log at the start and after each election.
func (m *Member) watchElections(ctx context.Context) {
	for first := true; ; first = false {
		changed := m.server.LeaderChangedNotify()
		if m.awaitComparison(ctx) != nil {
			return
		}
		if first {
			close(m.compared)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// guardSnapshots rejects a snapshot if its sender lacks committed entries of this member, or if the logs cannot be
// compared, because the snapshot would replace the log. The leader sends a rejected snapshot again.
func (m *Member) guardSnapshots(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := m.admitSnapshot(r); err != nil {
			m.log.Info("Rejected a snapshot", "reason", err.Error())
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			m.refuse(err)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// admitSnapshot compares the log with the log of the snapshot's sender. It accepts a sender that no quorum has
// confirmed, because the sender may need this member for a quorum: a snapshot only contains applied entries, and these
// have been compared.
func (m *Member) admitSnapshot(r *http.Request) error {
	sender, err := types.IDFromString(r.Header.Get("X-Server-From"))
	if err != nil {
		return fmt.Errorf("the snapshot has no sender: %w", err)
	}
	urls := m.peerURLs(sender)
	if urls == nil {
		urls = strings.Split(r.Header.Get("X-PeerURLs"), ",") // the sender joined after this member's last entry
	}
	if err := m.compareWith(r.Context(), sender, urls); !errors.Is(err, errUnconfirmed) {
		return err
	}
	return nil
}

// refuse stops the member if err wraps ErrWritesLost or ErrDamaged, and records the first reason, so that the member
// does not start again.
func (m *Member) refuse(err error) {
	stops := errors.Is(err, ErrWritesLost) || errors.Is(err, ErrDamaged)
	if !stops || !m.refused.CompareAndSwap(false, true) {
		return
	}
	if err := writeRefusal(m.directory, err); err != nil {
		m.log.Error(err, "Failed to record why the member stops")
	}
	m.refusals <- err
}
