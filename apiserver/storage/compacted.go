package storage

import (
	"context"
	"crypto/rand"
	"fmt"
	"strconv"
	"time"

	"github.com/go-logr/logr"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"
	"k8s.io/utils/clock"
)

// compactedRetry is the time between two attempts to follow compaction.
const compactedRetry = time.Second

// FollowCompaction calls handle with the revision that the store has been compacted to, at first if there is one and
// then with each compaction that a server announces, until ctx ends. A server announces it right before it compacts.
func (s *Store) FollowCompaction(ctx context.Context, clock clock.Clock, log logr.Logger, handle func(revision int64)) {
	for ctx.Err() == nil {
		err := s.followCompaction(ctx, handle)
		if ctx.Err() != nil {
			return
		}
		log.V(1).Info("Following compaction was interrupted; trying again", "reason", err.Error())
		select {
		case <-clock.After(compactedRetry):
		case <-ctx.Done():
		}
	}
}

// followCompaction watches the compaction key on a stream of its own, as each feed does.
func (s *Store) followCompaction(ctx context.Context, handle func(revision int64)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	now, err := s.client.Get(ctx, compactionKey)
	if err != nil {
		return fmt.Errorf("reading %s: %w", compactionKey, classify(err))
	}
	for _, kv := range now.Kvs {
		announce(kv, handle)
	}
	ctx = metadata.AppendToOutgoingContext(clientv3.WithRequireLeader(ctx), streamKey, rand.Text())
	for response := range s.client.Watch(ctx, compactionKey, clientv3.WithRev(now.Header.Revision+1)) {
		if err := response.Err(); err != nil {
			return fmt.Errorf("watching %s: %w", compactionKey, classify(err))
		}
		for _, event := range response.Events {
			announce(event.Kv, handle)
		}
	}
	return fmt.Errorf("watching %s: %w: the stream has ended", compactionKey, ErrUnavailable)
}

// announce hands on the revision that a value of the compaction key is. A server's first round has none, and what is
// no number is passed over, as kube-apiserver does.
func announce(kv *mvccpb.KeyValue, handle func(revision int64)) {
	if revision, err := strconv.ParseInt(string(kv.Value), 10, 64); err == nil && revision > 0 {
		handle(revision)
	}
}
