package storage_test

import (
	"context"
	"errors"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/raft/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/util/wait"
	testclock "k8s.io/utils/clock/testing"

	"quorate.dev/apiserver/etcd/etcdtest"
	"quorate.dev/apiserver/storage"
)

// transactions is a client whose transactions are committed by a function.
type transactions struct {
	clientv3.KV
	commit func(context.Context, clientv3.Txn) (*clientv3.TxnResponse, error)
}

func (s *transactions) Txn(ctx context.Context) clientv3.Txn {
	return &transaction{Txn: s.KV.Txn(ctx), send: func(t clientv3.Txn) (*clientv3.TxnResponse, error) { return s.commit(ctx, t) }}
}

type transaction struct {
	clientv3.Txn
	send func(clientv3.Txn) (*clientv3.TxnResponse, error)
}

func (t *transaction) If(conditions ...clientv3.Cmp) clientv3.Txn {
	t.Txn = t.Txn.If(conditions...)
	return t
}

func (t *transaction) Then(operations ...clientv3.Op) clientv3.Txn {
	t.Txn = t.Txn.Then(operations...)
	return t
}

func (t *transaction) Else(operations ...clientv3.Op) clientv3.Txn {
	t.Txn = t.Txn.Else(operations...)
	return t
}

func (t *transaction) Commit() (*clientv3.TxnResponse, error) { return t.send(t.Txn) }

func TestDroppedWritesAreRepeated(t *testing.T) {
	client := etcdtest.Client(t)
	drops := 3
	client.KV = &transactions{KV: client.KV, commit: func(_ context.Context, txn clientv3.Txn) (*clientv3.TxnResponse, error) {
		if drops--; drops >= 0 {
			return nil, status.Error(codes.Unknown, raft.ErrProposalDropped.Error())
		}
		return txn.Commit()
	}}
	store := storage.New(client, "/registry")
	revision, err := store.Create(t.Context(), "pods/a", []byte("1"), 0)
	if err != nil {
		t.Fatal(err)
	}
	drops = 3
	if revision, err = store.Update(t.Context(), "pods/a", revision, []byte("2"), 0); err != nil {
		t.Fatal(err)
	}
	drops = 1 << 20
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	if _, err := store.Delete(ctx, "pods/a", revision); !errors.Is(err, storage.ErrUnavailable) {
		t.Errorf("got %v of a canceled request, want ErrUnavailable", err)
	}
}

// TestLostWritesAreRepeated changes the leader while a write waits for its response.
func TestLostWritesAreRepeated(t *testing.T) {
	lost := func(ctx context.Context, _ clientv3.Txn, _ <-chan struct{}) (*clientv3.TxnResponse, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	slow := func(_ context.Context, txn clientv3.Txn, repeated <-chan struct{}) (*clientv3.TxnResponse, error) {
		response, err := txn.Commit()
		<-repeated
		return response, err
	}
	late := func(_ context.Context, txn clientv3.Txn, repeated <-chan struct{}) (*clientv3.TxnResponse, error) {
		<-repeated
		return txn.Commit()
	}
	for name, c := range map[string]struct {
		first func(context.Context, clientv3.Txn, <-chan struct{}) (*clientv3.TxnResponse, error)
		stale bool // the key has another revision
	}{
		"lost":                  {first: lost},
		"applied":               {first: slow},
		"applied later":         {first: late},
		"a conflict":            {first: slow, stale: true},
		"a conflict, and later": {first: late, stale: true},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHandover(t, c.first)
			revision, err := h.store.Create(t.Context(), "pods/a", []byte("1"), 0)
			if err != nil {
				t.Fatal(err)
			}
			if c.stale {
				revision--
			}
			h.begin(t.Context())
			_, err = h.store.Update(t.Context(), "pods/a", revision, []byte("2"), 0)
			var conflict *storage.ConflictError
			if isConflict := errors.As(err, &conflict); isConflict != c.stale || !isConflict && err != nil {
				t.Errorf("got %v, want a conflict: %v", err, c.stale)
			}
			value, err := h.store.Get(t.Context(), "pods/a")
			if want := map[bool]string{true: "1", false: "2"}[c.stale]; err != nil || string(value.Data) != want {
				t.Errorf("%q is stored, want %q: %v", value.Data, want, err)
			}
		})
	}
}

// handover is a store whose leader changes during a write.
type handover struct {
	store    *storage.Store
	clock    *testclock.FakeClock
	changes  chan chan struct{} // each is the channel of the next change
	begun    chan struct{}      // the first transaction has been sent
	repeated chan struct{}      // the second one has been answered
	during   bool
}

func newHandover(t *testing.T, first func(context.Context, clientv3.Txn, <-chan struct{}) (*clientv3.TxnResponse, error)) *handover {
	t.Helper()
	client := etcdtest.Client(t)
	h := &handover{
		clock: testclock.NewFakeClock(time.Now()), changes: make(chan chan struct{}),
		begun: make(chan struct{}), repeated: make(chan struct{}),
	}
	sent := 0
	client.KV = &transactions{KV: client.KV, commit: func(ctx context.Context, txn clientv3.Txn) (*clientv3.TxnResponse, error) {
		if !h.during {
			return txn.Commit()
		}
		if sent++; sent == 1 {
			close(h.begun)
			return first(ctx, txn, h.repeated)
		}
		defer close(h.repeated)
		return txn.Commit()
	}}
	h.store = storage.New(client, "/registry")
	go h.store.RepeatLostWrites(t.Context(), func() <-chan struct{} {
		next := make(chan struct{})
		select {
		case h.changes <- next:
		case <-t.Context().Done():
		}
		return next
	}, h.clock)
	return h
}

// begin changes the leader once the next transaction has been sent.
func (h *handover) begin(ctx context.Context) {
	next := <-h.changes
	h.during = true
	go func() {
		<-h.begun
		close(next)
		<-h.changes
		_ = wait.PollUntilContextCancel(ctx, time.Millisecond, true, func(context.Context) (bool, error) {
			return h.clock.HasWaiters(), nil
		})
		h.clock.Step(time.Second)
	}()
}
