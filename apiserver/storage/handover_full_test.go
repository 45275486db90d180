package storage_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/storage"
)

// TestLostWritesWithoutBarrier changes the leader while an update and a creation wait for their responses, and etcd
// refuses to raise the barrier. The update is repeated. The attempts to raise the barrier become rare, and end when
// the creation ends.
func TestLostWritesWithoutBarrier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := clientv3.NewCtxClient(t.Context())
		lost, raises := 2, 0
		client.KV = &transactions{
			KV: clientv3.NewKVFromKVClient(nil, client),
			raise: func() error {
				raises++
				return rpctypes.ErrNoSpace
			},
			commit: func(ctx context.Context, _ clientv3.Txn) (*clientv3.TxnResponse, error) {
				if lost--; lost >= 0 {
					<-ctx.Done()
					return nil, ctx.Err()
				}
				return &clientv3.TxnResponse{Header: &etcdserverpb.ResponseHeader{Revision: 2}, Succeeded: true}, nil
			},
		}
		store := storage.New(client, "/registry")
		next := make(chan struct{})
		go store.RepeatLostWrites(t.Context(), func() <-chan struct{} { return next }, clock.RealClock{})
		synctest.Wait()

		ctx, cancel := context.WithTimeout(t.Context(), 7*time.Second)
		defer cancel()
		created, updated := make(chan error, 1), make(chan error, 1)
		go func() {
			_, err := store.Create(ctx, "pods/a", []byte("1"), 0)
			created <- err
		}()
		synctest.Wait()
		go func() {
			_, err := store.Update(ctx, "pods/b", 1, []byte("2"), 0)
			updated <- err
		}()
		synctest.Wait()
		change := next
		next = make(chan struct{})
		close(change)

		if err := <-updated; err != nil {
			t.Errorf("the update is not repeated: %v", err)
		}
		if err := <-created; !errors.Is(err, storage.ErrUncertain) {
			t.Errorf("got %v of the creation, want ErrUncertain", err)
		}
		<-time.After(time.Minute)
		synctest.Wait()
		if raises == 0 || raises > 20 {
			t.Errorf("got %d attempts to raise the barrier, want a few during the 7 s of the creation", raises)
		}
	})
}

// barrier is an etcd that has only the barrier. Each transaction raises the barrier.
type barrier struct {
	clientv3.KV
	clientv3.Watcher
	revision atomic.Int64
}

func (b *barrier) Txn(context.Context) clientv3.Txn { return b }
func (b *barrier) If(...clientv3.Cmp) clientv3.Txn  { return b }
func (b *barrier) Then(...clientv3.Op) clientv3.Txn { return b }
func (b *barrier) Else(...clientv3.Op) clientv3.Txn { return b }
func (b *barrier) Commit() (*clientv3.TxnResponse, error) {
	header := &etcdserverpb.ResponseHeader{ClusterId: 1, Revision: b.revision.Add(1)}
	return &clientv3.TxnResponse{Header: header, Succeeded: true}, nil
}

// Watch delivers the write of the barrier.
func (b *barrier) Watch(context.Context, string, ...clientv3.OpOption) clientv3.WatchChan {
	event := &clientv3.Event{Kv: &mvccpb.KeyValue{Key: []byte(barrierKey), ModRevision: b.revision.Load()}}
	responses := make(chan clientv3.WatchResponse, 1)
	responses <- clientv3.WatchResponse{Events: []*clientv3.Event{event}}
	return responses
}

// TestWritesLostAgain changes the leader several times. Each change loses the attempt that was sent after the previous
// one. The write succeeds with the first attempt that is not lost, after less than a second for each change, also if
// etcd refuses the first attempt in the meantime.
func TestWritesLostAgain(t *testing.T) {
	writes := map[string]func(context.Context, *storage.Store) (int64, error){
		"creation": func(ctx context.Context, store *storage.Store) (int64, error) {
			return store.Create(ctx, "pods/a", []byte("1"), 0)
		},
		"update": func(ctx context.Context, store *storage.Store) (int64, error) {
			return store.Update(ctx, "pods/a", 1, []byte("2"), 0)
		},
	}
	for name, write := range writes {
		for _, refused := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, first attempt refused: %t", name, refused), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { loseAgain(t, write, refused) })
			})
		}
	}
}

func loseAgain(t *testing.T, write func(context.Context, *storage.Store) (int64, error), refused bool) {
	const changes = 3
	client := clientv3.NewCtxClient(t.Context())
	var sent atomic.Int64
	second := make(chan struct{})
	etcd := &barrier{}
	client.Watcher = etcd
	client.KV = &transactions{KV: etcd,
		commit: func(ctx context.Context, _ clientv3.Txn) (*clientv3.TxnResponse, error) {
			attempt := sent.Add(1)
			switch {
			case attempt == 1 && refused:
				<-second
				return nil, rpctypes.ErrNoSpace
			case attempt == 2:
				close(second)
			}
			if attempt <= changes {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			header := &etcdserverpb.ResponseHeader{ClusterId: 1, MemberId: 1, Revision: 2}
			return &clientv3.TxnResponse{Header: header, Succeeded: true}, nil
		},
	}
	store := storage.New(client, "/registry")
	var next atomic.Pointer[chan struct{}]
	renew := func() (previous *chan struct{}) {
		channel := make(chan struct{})
		return next.Swap(&channel)
	}
	renew()
	go store.RepeatLostWrites(t.Context(), func() <-chan struct{} { return *next.Load() }, clock.RealClock{})
	synctest.Wait()

	ctx, cancel := context.WithTimeout(t.Context(), 7*time.Second)
	defer cancel()
	began := time.Now()
	done := make(chan error, 1)
	go func() {
		_, err := write(ctx, store)
		done <- err
	}()
	for range changes {
		synctest.Wait()
		close(*renew())
		<-time.After(500 * time.Millisecond)
	}
	if err := <-done; err != nil || time.Since(began) > changes*time.Second {
		t.Errorf("got %v after %v", err, time.Since(began))
	}
	if got := sent.Load(); got != changes+1 {
		t.Errorf("the write was sent %d times, want %d", got, changes+1)
	}
}

// TestBarrierOfOtherReplicas changes the leader while a creation waits for its response. Another replica raises the
// barrier first. This replica uses the same revision, so that the repeated creations of both succeed.
func TestBarrierOfOtherReplicas(t *testing.T) {
	h := newHandover(t, func(ctx context.Context, _ clientv3.Txn, _ <-chan struct{}) (*clientv3.TxnResponse, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	})
	var theirs int64
	h.raise = func() error {
		response, err := h.client.Put(t.Context(), barrierKey, "")
		if err == nil {
			theirs = response.Header.Revision
		}
		return err
	}
	h.begin(t.Context())
	if _, err := h.store.Create(t.Context(), "pods/a", []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	barrier, err := h.client.Get(t.Context(), barrierKey)
	if err != nil || barrier.Kvs[0].ModRevision != theirs {
		t.Errorf("the barrier has revision %v, want %d: %v", barrier, theirs, err)
	}
}
