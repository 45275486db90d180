package storage

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/go-logr/logr"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/utils/clock"
)

// compactionKey is where all servers on one etcd, kube-apiserver among them, agree on compaction: its version
// counts the rounds, its value is the revision compacted to. It lies outside every prefix.
const compactionKey = "compact_rev_key"

// Compact removes what was superseded or deleted before a revision. Compacting to a revision again is no error.
func (s *Store) Compact(ctx context.Context, revision int64) error {
	_, err := s.client.Compact(ctx, revision)
	if err != nil && !errors.Is(err, rpctypes.ErrCompacted) {
		return fmt.Errorf("compacting to revision %d: %w", revision, classify(err))
	}
	return nil
}

// shortageInterval is the interval of compaction while the soft quota is exceeded, unless the usual one is shorter.
const shortageInterval = 15 * time.Second

// RunCompaction compacts to the revision of one interval ago, once per interval among all the servers that do so, until
// ctx ends. An interval of 0 never compacts. While the soft quota is exceeded every server compacts, at a shorter
// interval: superseded revisions take space that is needed.
func (s *Store) RunCompaction(ctx context.Context, interval time.Duration, quota *SoftQuota, clock clock.WithTicker,
	log logr.Logger) {
	if interval <= 0 {
		return
	}
	usual, short := clock.NewTicker(interval), clock.NewTicker(min(interval, shortageInterval))
	defer usual.Stop()
	defer short.Stop()
	var last round
	var shortage int64 // revision at the last tick of a shortage; 0: there was none
	for {
		var err error
		select {
		case <-usual.C():
			last, err = s.compactRound(ctx, last)
		case <-short.C():
			shortage, err = s.compactInShortage(ctx, quota, shortage)
		case <-ctx.Done():
			return
		}
		if err != nil && ctx.Err() == nil {
			log.Error(err, "Compaction failed; trying again in the next interval", "interval", interval)
		}
	}
}

// compactInShortage compacts to where the store was at the last tick, if space was short then and still is. It returns
// where the store is now.
func (s *Store) compactInShortage(ctx context.Context, quota *SoftQuota, last int64) (int64, error) {
	if !quota.Exceeded() {
		return 0, nil
	}
	current, err := s.Revision(ctx)
	if err != nil || last == 0 {
		return current, err
	}
	// Other servers learn from the key what the store is compacted to; etcd may refuse the write, but not the compaction.
	_, err = s.client.Put(ctx, compactionKey, strconv.FormatInt(last, 10))
	if err = classify(err); err != nil && !errors.Is(err, ErrNoSpace) {
		return current, fmt.Errorf("announcing a compaction: %w", err)
	}
	return current, s.Compact(ctx, last)
}

// round is what a server knows of the servers' common compaction.
type round struct {
	version  int64 // of the compaction key, when last looked at
	revision int64 // of the store at that time; 0: unknown
}

// compactRound tries to be the server that compacts in this interval: it is if no other moved the key since the
// last interval. It compacts to where the store was then. It returns what is known for the next round.
func (s *Store) compactRound(ctx context.Context, last round) (round, error) {
	response, err := s.client.Txn(ctx).
		If(clientv3.Compare(clientv3.Version(compactionKey), "=", last.version)).
		Then(clientv3.OpPut(compactionKey, strconv.FormatInt(last.revision, 10))).
		Else(clientv3.OpGet(compactionKey)).Commit()
	if errors.Is(classify(err), ErrNoSpace) {
		return s.compactUnclaimed(ctx, last)
	}
	if err != nil {
		return last, fmt.Errorf("claiming a round of compaction: %w", classify(err))
	}
	next := round{version: last.version + 1, revision: response.Header.Revision}
	if !response.Succeeded {
		next.version = 0
		if kvs := response.Responses[0].GetResponseRange().Kvs; len(kvs) == 1 {
			next.version = kvs[0].Version
		}
		return next, nil
	}
	if last.revision == 0 {
		return next, nil
	}
	return next, s.Compact(ctx, last.revision)
}

// compactUnclaimed compacts without a claim: etcd refuses the write of the key while its alarm NOSPACE is raised, but
// not compaction. Several servers may do so in the same interval; that is harmless.
func (s *Store) compactUnclaimed(ctx context.Context, last round) (round, error) {
	revision, err := s.Revision(ctx)
	if err != nil {
		return last, err
	}
	next := round{version: last.version, revision: revision}
	if last.revision == 0 {
		return next, nil
	}
	return next, s.Compact(ctx, last.revision)
}
