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

// followRetry is the time between two attempts to watch the compaction key.
const followRetry = time.Second

// FollowCompaction calls handle with the last compacted revision, if any, and then with the revision of each
// compaction that a server announces, until ctx ends. Servers announce a compaction just before they compact. It is
// kube-apiserver's runWatchLoop.
func (s *Store) FollowCompaction(ctx context.Context, clock clock.Clock, log logr.Logger, handle func(revision int64)) {
	for ctx.Err() == nil {
		err := s.followCompaction(ctx, handle)
		if ctx.Err() != nil {
			return
		}
		log.V(1).Info("Watch of the compaction key failed; retrying", "reason", err.Error())
		select {
		case <-clock.After(followRetry):
		case <-ctx.Done():
		}
	}
}

// followCompaction reads and then watches the compaction key until an error occurs. The watch has its own gRPC
// stream, like a WatchStream.
func (s *Store) followCompaction(ctx context.Context, handle func(revision int64)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	now, err := s.get(ctx, compactionKey)
	if err != nil {
		return fmt.Errorf("read %s: %w", compactionKey, classify(err))
	}
	for _, kv := range now.Kvs {
		handleCompaction(kv, handle)
	}
	ctx = metadata.AppendToOutgoingContext(clientv3.WithRequireLeader(ctx), streamKey, rand.Text())
	for response := range s.client.Watch(ctx, compactionKey, clientv3.WithRev(now.Header.Revision+1)) {
		if err := response.Err(); err != nil {
			return fmt.Errorf("watch %s: %w", compactionKey, classify(err))
		}
		for _, event := range response.Events {
			handleCompaction(event.Kv, handle)
		}
	}
	return fmt.Errorf("watch %s: %w: the stream has ended", compactionKey, ErrUnavailable)
}

// handleCompaction calls handle with the revision in the value of the compaction key. It ignores the value 0, which
// the first round of a server writes, and like kube-apiserver values that are not numbers.
func handleCompaction(kv *mvccpb.KeyValue, handle func(revision int64)) {
	if revision, err := strconv.ParseInt(string(kv.Value), 10, 64); err == nil && revision > 0 {
		handle(revision)
	}
}
