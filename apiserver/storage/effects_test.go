package storage_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"quorate.dev/apiserver/etcd/etcdtest"
	"quorate.dev/apiserver/storage"
)

// TestEffectsWithoutResponses applies a creation whose response is lost, as when the member receives the effect in a
// snapshot, and changes the leader. The creation succeeds and is not sent again, whatever other clients have done with
// the object since. If the history is compacted, the outcome is unknown.
func TestEffectsWithoutResponses(t *testing.T) {
	const key = "/registry/pods/a"
	do := func(t *testing.T, client *clientv3.Client, operations ...clientv3.Op) {
		t.Helper()
		for _, operation := range operations {
			if _, err := client.Do(t.Context(), operation); err != nil {
				t.Error(err)
			}
		}
	}
	for name, c := range map[string]struct {
		then   []clientv3.Op // by other clients, after the creation
		stored string        // at the end; empty: nothing
		sent   int           // number of attempts
	}{
		"stored":            {stored: "1", sent: 1},
		"deleted":           {then: []clientv3.Op{clientv3.OpDelete(key)}, sent: 1},
		"updated":           {then: []clientv3.Op{clientv3.OpPut(key, "2")}, stored: "2", sent: 1},
		"updated, deleted":  {then: []clientv3.Op{clientv3.OpPut(key, "2"), clientv3.OpDelete(key)}, sent: 1},
		"replaced":          {then: []clientv3.Op{clientv3.OpDelete(key), clientv3.OpPut(key, "2")}, stored: "2", sent: 1},
		"another one added": {then: []clientv3.Op{clientv3.OpPut(key+"b", "1"), clientv3.OpDelete(key)}, sent: 1},
	} {
		t.Run(name, func(t *testing.T) {
			var applied int64
			var client *clientv3.Client
			sent, done := 0, make(chan struct{})
			h := newHandover(t, func(ctx context.Context, txn clientv3.Txn, _ <-chan struct{}) (*clientv3.TxnResponse, error) {
				sent++
				response, err := txn.Commit()
				if err != nil {
					return nil, err
				}
				applied = response.Header.Revision
				do(t, client, c.then...)
				close(done)
				<-ctx.Done()
				return nil, ctx.Err()
			})
			h.second = func(txn clientv3.Txn) (*clientv3.TxnResponse, error) {
				sent++
				return txn.Commit()
			}
			h.raise = func() error {
				<-done
				return nil
			}
			client = h.client
			do(t, client, clientv3.OpPut(key, "1"), clientv3.OpDelete(key)) // an earlier object
			if _, err := h.store.Revision(t.Context()); err != nil {
				t.Fatal(err)
			}
			h.begin(t.Context())
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			revision, err := h.store.Create(ctx, "pods/a", []byte("1"), 0)
			if err != nil || revision != applied {
				t.Errorf("got revision %d, want %d: %v", revision, applied, err)
			}
			if sent != c.sent {
				t.Errorf("the creation was sent %d times, want %d", sent, c.sent)
			}
			value, err := h.store.Get(t.Context(), "pods/a")
			if string(value.Data) != c.stored || errors.Is(err, storage.ErrNotFound) != (c.stored == "") {
				t.Errorf("%q is stored, want %q: %v", value.Data, c.stored, err)
			}
		})
	}
	t.Run("compacted", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		var client *clientv3.Client
		done := make(chan struct{})
		h := newHandover(t, func(ctx context.Context, txn clientv3.Txn, _ <-chan struct{}) (*clientv3.TxnResponse, error) {
			if _, err := txn.Commit(); err != nil {
				return nil, err
			}
			do(t, client, clientv3.OpDelete(key))
			response, err := client.Put(ctx, key+"b", "1")
			if err == nil {
				_, err = client.Compact(ctx, response.Header.Revision)
			}
			if err != nil {
				t.Error(err)
			}
			close(done)
			<-ctx.Done()
			return nil, ctx.Err()
		})
		h.raise = func() error {
			<-done
			return nil
		}
		h.second = func(clientv3.Txn) (*clientv3.TxnResponse, error) {
			t.Error("the creation was sent again")
			return nil, rpctypes.ErrTimeout
		}
		client = h.client
		client.Watcher = &watches{Watcher: client.Watcher, ended: cancel}
		h.begin(t.Context())
		if _, err := h.store.Create(ctx, "pods/a", []byte("1"), 0); !errors.Is(err, storage.ErrUncertain) {
			t.Errorf("got %v, want ErrUncertain", err)
		}
		if value, err := h.store.Get(t.Context(), "pods/a"); !errors.Is(err, storage.ErrNotFound) {
			t.Errorf("the deleted object is there again: %q, %v", value.Data, err)
		}
	})
}

// TestLostCreationOfExistingObject loses the first attempt of a creation, and another client creates the object. The
// second attempt finds the object, and the creation fails with ErrExists without waiting for the first attempt.
func TestLostCreationOfExistingObject(t *testing.T) {
	created := make(chan struct{})
	h := newHandover(t, func(ctx context.Context, _ clientv3.Txn, _ <-chan struct{}) (*clientv3.TxnResponse, error) {
		close(created)
		<-ctx.Done()
		return nil, ctx.Err()
	})
	h.raise = func() error {
		<-created
		_, err := h.client.Put(t.Context(), "/registry/pods/a", "2")
		return err
	}
	h.begin(t.Context())
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, err := h.store.Create(ctx, "pods/a", []byte("1"), 0); !errors.Is(err, storage.ErrExists) {
		t.Errorf("got %v, want ErrExists", err)
	}
}

// TestDeletedBarrier deletes the key of the barrier. The next creation writes the key again.
func TestDeletedBarrier(t *testing.T) {
	h := newHandover(t, func(ctx context.Context, _ clientv3.Txn, _ <-chan struct{}) (*clientv3.TxnResponse, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	})
	h.begin(t.Context())
	if _, err := h.store.Create(t.Context(), "pods/a", []byte("1"), 0); err != nil { // raises the barrier
		t.Fatal(err)
	}
	if deleted, err := h.client.Delete(t.Context(), barrierKey); err != nil || deleted.Deleted != 1 {
		t.Fatalf("deleted %v: %v", deleted, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, err := h.store.Create(ctx, "pods/b", []byte("1"), 0); err != nil {
		t.Error(err)
	}
}

// TestAppliedWithoutSpace writes to an etcd that returns ErrNoSpace, with and without applying the transaction.
func TestAppliedWithoutSpace(t *testing.T) {
	for _, applied := range []bool{true, false} {
		client := etcdtest.Client(t)
		full := false
		client.KV = &transactions{KV: client.KV,
			commit: func(_ context.Context, txn clientv3.Txn) (*clientv3.TxnResponse, error) {
				if !full {
					return txn.Commit()
				}
				if applied {
					if _, err := txn.Commit(); err != nil {
						t.Error(err)
					}
				}
				return nil, rpctypes.ErrNoSpace
			}}
		store := storage.New(client, "/registry")
		revision, err := store.Create(t.Context(), "pods/a", []byte("1"), 0)
		if err != nil {
			t.Fatal(err)
		}
		full = true
		for _, write := range []func() (int64, error){
			func() (int64, error) { return store.Update(t.Context(), "pods/a", revision, []byte("2"), 0) },
			func() (int64, error) { return store.Create(t.Context(), "pods/b", []byte("1"), 0) },
		} {
			switch written, err := write(); {
			case applied && (err != nil || written <= revision):
				t.Errorf("got revision %d of a write that was applied: %v", written, err)
			case !applied && (!errors.Is(err, storage.ErrNoSpace) || errors.Is(err, storage.ErrUncertain)):
				t.Errorf("got %v of a write that was not applied, want ErrNoSpace", err)
			}
		}
	}
}

// watches is a client that calls a function after a watch has ended because its revision is compacted.
type watches struct {
	clientv3.Watcher
	ended func()
}

func (w *watches) Watch(ctx context.Context, key string, options ...clientv3.OpOption) clientv3.WatchChan {
	responses := make(chan clientv3.WatchResponse)
	go func() {
		defer close(responses)
		for response := range w.Watcher.Watch(ctx, key, options...) {
			select {
			case responses <- response:
			case <-ctx.Done():
				return
			}
			if response.CompactRevision > 0 {
				w.ended()
			}
		}
	}()
	return responses
}
