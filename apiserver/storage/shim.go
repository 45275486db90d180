package storage

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// isShim reports whether a response comes from a server other than etcd that implements etcd's API, such as kine:
// only etcd's responses have the ID of the cluster.
func isShim(header *etcdserverpb.ResponseHeader) bool { return header.GetClusterId() == 0 }

// shimTimeout bounds the test of one feature of a shim. It is shorter than the interval of kine's periodic progress
// notifications.
const shimTimeout = 3 * time.Second

// progressInterval is the interval of progress requests while a shim is tested.
const progressInterval = 20 * time.Millisecond

// testTTL is the TTL in seconds of a lease that is granted as a test and not used.
const testTTL = 60

// testShim logs the features that a shim lacks, and reports whether the shim sends progress notifications on request.
func (s *Store) testShim(ctx context.Context, log logr.Logger) bool {
	log.Info("The store is not etcd; testing its features")
	limited, cancel := context.WithTimeout(ctx, s.shimTimeout)
	defer cancel()
	if _, err := s.leases.granter.Grant(limited, testTTL); isUnsupported(err) {
		log.Error(err, "The store grants no leases: Events cannot be stored")
	}
	err := s.testProgress(ctx)
	if err != nil && ctx.Err() == nil {
		log.Error(err, "The store sends no progress notifications: consistent reads are not served from the watch cache")
	}
	return err == nil
}

// testProgress creates and deletes a path during a watch, and returns an error if no progress notification for the
// revision of the deletion follows. kine on NATS sends none until the next write: its revision of a deletion has no
// event.
func (s *Store) testProgress(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, s.shimTimeout)
	defer cancel()
	path := shimTestPath + rand.Text()
	var deleted int64
	defer func() {
		if deleted == 0 {
			err = errors.Join(err, s.deleteAlways(ctx, path))
		}
	}()
	created, err := s.Create(ctx, path, nil, 0)
	if err != nil {
		return err
	}
	stream, err := s.History(ctx, path, created-1)
	if err != nil {
		return err
	}
	defer stream.Close()
	if _, err := stream.Next(ctx); err != nil { // the event of the creation
		return err
	}
	if deleted, err = s.Delete(ctx, path, created); err != nil {
		return err
	}
	return stream.awaitProgress(ctx, deleted)
}

// deleteAlways deletes a path if it exists, even after ctx has ended.
func (s *Store) deleteAlways(ctx context.Context, path string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), shimTimeout)
	defer cancel()
	for {
		found, err := s.get(ctx, s.Key(path), clientv3.WithKeysOnly())
		if err != nil {
			return fmt.Errorf("delete %s: %w", path, classify(err))
		}
		if len(found.Kvs) == 0 {
			return nil
		}
		if deleted, err := s.DeleteUnreadable(ctx, path, found.Kvs[0].ModRevision); err != nil || deleted {
			return err
		}
	}
}

// awaitProgress requests progress until a notification with at least the given revision arrives. It discards other
// batches.
func (w *WatchStream) awaitProgress(ctx context.Context, revision int64) error {
	ticker := time.NewTicker(progressInterval)
	defer ticker.Stop()
	for {
		select {
		case <-w.received:
			batch, received, err := w.take()
			if received && (err != nil || len(batch.Events) == 0 && batch.Revision >= revision) {
				return err
			}
		case <-ticker.C: // repeatedly, because a shim does not respond while a watch lags
			if err := w.RequestProgress(); err != nil {
				return err
			}
		case <-ctx.Done():
			return fmt.Errorf("no progress notification within %v: %w", w.store.shimTimeout, ctx.Err())
		}
	}
}

// shimTestPath is the prefix of the paths that testProgress creates.
const shimTestPath = "quorate-test/"

// isUnsupported reports whether a server does not implement a request. kine does not use the code Unimplemented; only
// the text shows that it lacks a feature.
func isUnsupported(err error) bool {
	if err == nil {
		return false
	}
	return status.Code(err) == codes.Unimplemented || strings.Contains(err.Error(), "not supported") ||
		strings.Contains(err.Error(), "unsupported operations in txn request")
}

// shimLag bounds the number of revisions by which a shim's response may lag behind the write that it answers.
const shimLag = 8

// created returns the revision at which a key was created with a value, given the revision in the response. kine on
// an SQL database responds to the creation of a key that existed before with the last revision that it has polled,
// which often belongs to another write (kine 0.17, LogStructured.Create).
func (s *Store) created(ctx context.Context, key string, value []byte, inResponse int64) int64 {
	found, err := s.client.Get(ctx, key, clientv3.WithKeysOnly())
	if err != nil || len(found.Kvs) == 1 {
		return createRevision(found, inResponse)
	}
	for revision := inResponse; revision <= inResponse+shimLag; revision++ { // the key has been deleted since its creation
		found, err := s.client.Get(ctx, key, clientv3.WithRev(revision))
		if err != nil {
			break
		}
		if len(found.Kvs) == 1 && bytes.Equal(found.Kvs[0].Value, value) {
			return createRevision(found, inResponse)
		}
	}
	return inResponse
}

// createRevision returns the CreateRevision of the key in a response, or other if the response has no key.
func createRevision(found *clientv3.GetResponse, other int64) int64 {
	if found == nil || len(found.Kvs) == 0 {
		return other
	}
	return found.Kvs[0].CreateRevision
}
