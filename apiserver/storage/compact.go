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

// RunCompaction compacts to the revision of one interval ago, once per interval among all the servers that do
// so, until ctx ends. An interval of 0 never compacts.
func (s *Store) RunCompaction(ctx context.Context, interval time.Duration, clock clock.WithTicker, log logr.Logger) {
	if interval <= 0 {
		return
	}
	ticker := clock.NewTicker(interval)
	defer ticker.Stop()
	var now round
	for {
		select {
		case <-ticker.C():
		case <-ctx.Done():
			return
		}
		next, err := s.compactRound(ctx, now)
		if err != nil && ctx.Err() == nil {
			log.Error(err, "Compaction failed; trying again in the next interval", "interval", interval)
		}
		now = next
	}
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
