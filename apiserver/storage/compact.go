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

// compactionKey is the key by which all servers of one etcd coordinate compaction, kube-apiserver's compactRevKey:
// its version counts the rounds, its value is the revision to which the last round compacts. It is outside every
// prefix.
const compactionKey = "compact_rev_key"

// Compact makes etcd discard the states before a revision. Compacting to a revision that is already compacted is no
// error.
func (s *Store) Compact(ctx context.Context, revision int64) error {
	_, err := s.client.Compact(ctx, revision)
	if err != nil && !errors.Is(err, rpctypes.ErrCompacted) {
		return fmt.Errorf("compact to revision %d: %w", revision, classify(err))
	}
	return nil
}

// fullInterval is the interval of compaction while the soft quota is exceeded, unless the configured interval is
// shorter.
const fullInterval = 15 * time.Second

// RunCompaction compacts, until ctx ends, once per interval among all servers of the etcd, to the revision of one
// interval ago. Interval 0 disables it. While the soft quota is exceeded, every server also compacts at a shorter
// interval: superseded revisions use space that writes need. It is kube-apiserver's runCompactLoop, apart from the
// soft quota.
func (s *Store) RunCompaction(
	ctx context.Context, interval time.Duration, quota *SoftQuota, clock clock.WithTicker, log logr.Logger,
) {
	if interval <= 0 {
		return
	}
	regular, short := clock.NewTicker(interval), clock.NewTicker(min(interval, fullInterval))
	defer regular.Stop()
	defer short.Stop()
	var last round
	var full int64 // revision at the last short tick; 0: the quota was not exceeded then
	for {
		var err error
		select {
		case <-regular.C():
			last, err = s.compactRound(ctx, last)
		case <-short.C():
			full, err = s.compactWhileFull(ctx, quota, full)
		case <-ctx.Done():
			return
		}
		if isUnsupported(err) {
			log.Error(err, "The store does not compact: its history grows unless it removes old revisions itself")
			return
		}
		if err != nil && ctx.Err() == nil {
			log.Error(err, "Compaction failed; trying again in the next interval", "interval", interval)
		}
	}
}

// compactWhileFull compacts to the revision at the last short tick, if the quota was exceeded then and still is. It
// returns the current revision, 0 if the quota is not exceeded.
func (s *Store) compactWhileFull(ctx context.Context, quota *SoftQuota, last int64) (int64, error) {
	if !quota.Exceeded() {
		return 0, nil
	}
	current, err := s.Revision(ctx)
	if err != nil || last == 0 {
		return current, err
	}
	// The write of the key announces the compaction to the other servers. etcd may refuse it for lack of space, but
	// not compaction.
	_, err = s.client.Put(ctx, compactionKey, strconv.FormatInt(last, 10))
	if err = classify(err); err != nil && !errors.Is(err, ErrNoSpace) {
		return current, fmt.Errorf("announce a compaction: %w", err)
	}
	return current, s.Compact(ctx, last)
}

// round is the state of etcd that a server observed in its last round of compaction.
type round struct {
	version  int64 // version of the compaction key
	revision int64 // revision of etcd; 0: unknown
}

// compactRound tries to claim the compaction of this interval: a transaction writes the compaction key if its version
// is the one observed in the last round, so that it fails if another server has claimed a compaction since. The
// winner compacts to the revision observed in the last round, which is one interval old.
func (s *Store) compactRound(ctx context.Context, last round) (round, error) {
	response, err := s.client.Txn(ctx).
		If(clientv3.Compare(clientv3.Version(compactionKey), "=", last.version)).
		Then(clientv3.OpPut(compactionKey, strconv.FormatInt(last.revision, 10))).
		Else(clientv3.OpGet(compactionKey)).Commit()
	if errors.Is(classify(err), ErrNoSpace) {
		return s.compactUnclaimed(ctx, last)
	}
	if err != nil {
		return last, fmt.Errorf("claim a round of compaction: %w", classify(err))
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

// compactUnclaimed compacts without a claim: while the NOSPACE alarm is raised, etcd refuses the write of the key but
// not compaction. Several servers may compact in the same interval, which is harmless.
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
