package storage_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/raft/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/util/wait"
	testclock "k8s.io/utils/clock/testing"

	"quorate.dev/apiserver/etcd/etcdtest"
	"quorate.dev/apiserver/storage"
)

// barrierKey is the key on which creations depend.
const barrierKey = "quorate.dev/handover"

// transactions is a client whose transactions are committed by a function.
type transactions struct {
	clientv3.KV
	commit func(context.Context, clientv3.Txn) (*clientv3.TxnResponse, error)
	// raise, unless it is nil, is called before the barrier is raised; its error prevents that. Transactions that raise
	// the barrier are not passed to commit.
	raise func() error
}

func (s *transactions) Txn(ctx context.Context) clientv3.Txn {
	// A transaction that the client gives up may have been sent, and take effect.
	return &transaction{
		Txn: s.KV.Txn(context.WithoutCancel(ctx)), raise: s.raise,
		send: func(t clientv3.Txn) (*clientv3.TxnResponse, error) { return s.commit(ctx, t) },
	}
}

type transaction struct {
	clientv3.Txn
	send   func(clientv3.Txn) (*clientv3.TxnResponse, error)
	raise  func() error
	raises bool // the transaction raises the barrier
}

func (t *transaction) If(conditions ...clientv3.Cmp) clientv3.Txn {
	t.Txn = t.Txn.If(conditions...)
	return t
}

func (t *transaction) Then(operations ...clientv3.Op) clientv3.Txn {
	t.raises = operations[0].IsPut() && string(operations[0].KeyBytes()) == barrierKey
	t.Txn = t.Txn.Then(operations...)
	return t
}

func (t *transaction) Else(operations ...clientv3.Op) clientv3.Txn {
	t.Txn = t.Txn.Else(operations...)
	return t
}

func (t *transaction) Commit() (*clientv3.TxnResponse, error) {
	if !t.raises {
		return t.send(t.Txn)
	}
	if t.raise != nil {
		if err := t.raise(); err != nil {
			return nil, err
		}
	}
	return t.Txn.Commit()
}

func TestDroppedWritesAreRepeated(t *testing.T) {
	client := etcdtest.Client(t)
	drops := 3
	client.KV = &transactions{KV: client.KV,
		commit: func(_ context.Context, txn clientv3.Txn) (*clientv3.TxnResponse, error) {
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

// TestLostCreations checks that the first attempt of a creation that was sent twice has no effect after the object
// was deleted, however late the attempt arrives, and that a creation whose barrier another replica has raised is sent
// again.
func TestLostCreations(t *testing.T) {
	deleted, applied := make(chan struct{}), make(chan error, 1)
	h := newHandover(t, func(ctx context.Context, txn clientv3.Txn, _ <-chan struct{}) (*clientv3.TxnResponse, error) {
		go func() {
			<-deleted
			_, err := txn.Commit()
			applied <- err
		}()
		<-ctx.Done()
		return nil, ctx.Err()
	})
	h.begin(t.Context())
	revision, err := h.store.Create(t.Context(), "pods/a", []byte("1"), 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.store.Delete(t.Context(), "pods/a", revision); err != nil {
		t.Fatal(err)
	}
	close(deleted)
	if err := <-applied; err != nil {
		t.Fatal(err)
	}
	if value, err := h.store.Get(t.Context(), "pods/a"); !errors.Is(err, storage.ErrNotFound) {
		t.Errorf("the deleted object is there again: %q, %v", value.Data, err)
	}
	if _, err := h.store.Create(t.Context(), "pods/a", []byte("2"), 0); err != nil {
		t.Error(err)
	}
	if _, err := h.store.Create(t.Context(), "pods/a", []byte("3"), 0); !errors.Is(err, storage.ErrExists) {
		t.Errorf("got %v, want ErrExists", err)
	}
	if _, err := h.client.Put(t.Context(), barrierKey, ""); err != nil { // by another replica
		t.Fatal(err)
	}
	if _, err := h.store.Create(t.Context(), "pods/b", []byte("1"), 0); err != nil {
		t.Errorf("after another replica has raised the barrier: %v", err)
	}
}

// TestDelayedRepetitions changes the leader twice during a creation. The first two attempts arrive after the third one
// has succeeded and the object was deleted, and have no effect.
func TestDelayedRepetitions(t *testing.T) {
	deleted, applied := make(chan struct{}), make(chan error, 2)
	delayed := func(ctx context.Context, txn clientv3.Txn) (*clientv3.TxnResponse, error) {
		go func() {
			<-deleted
			_, err := txn.Commit()
			applied <- err
		}()
		<-ctx.Done()
		return nil, ctx.Err()
	}
	h := newHandover(t, func(ctx context.Context, txn clientv3.Txn, _ <-chan struct{}) (*clientv3.TxnResponse, error) {
		return delayed(ctx, txn)
	})
	h.delayed = delayed
	h.begin(t.Context())
	revision, err := h.store.Create(t.Context(), "pods/a", []byte("1"), 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.store.Delete(t.Context(), "pods/a", revision); err != nil {
		t.Fatal(err)
	}
	close(deleted)
	for range 2 {
		if err := <-applied; err != nil {
			t.Fatal(err)
		}
	}
	if value, err := h.store.Get(t.Context(), "pods/a"); !errors.Is(err, storage.ErrNotFound) {
		t.Errorf("the deleted object is there again: %q, %v", value.Data, err)
	}
}

// TestUncertainRepetitions loses the response of the second attempt, while the first one has no effect. The outcome
// is unknown, whatever the response of the first attempt and the current value are.
func TestUncertainRepetitions(t *testing.T) {
	late := func(_ context.Context, txn clientv3.Txn, repeated <-chan struct{}) (*clientv3.TxnResponse, error) {
		<-repeated
		return txn.Commit()
	}
	refused := func(_ context.Context, _ clientv3.Txn, repeated <-chan struct{}) (*clientv3.TxnResponse, error) {
		<-repeated
		return nil, rpctypes.ErrNoSpace
	}
	for name, c := range map[string]struct {
		first  func(context.Context, clientv3.Txn, <-chan struct{}) (*clientv3.TxnResponse, error)
		update bool
	}{
		"an outdated creation": {first: late},
		"a refused creation":   {first: refused},
		"a conflict":           {first: late, update: true},
		"a refused update":     {first: refused, update: true},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHandover(t, c.first)
			h.second = func(txn clientv3.Txn) (*clientv3.TxnResponse, error) {
				if _, err := txn.Commit(); err != nil {
					t.Error(err)
				}
				return nil, rpctypes.ErrTimeout
			}
			write := func() (int64, error) { return h.store.Create(t.Context(), "pods/a", []byte("2"), 0) }
			if c.update {
				revision, err := h.store.Create(t.Context(), "pods/a", []byte("1"), 0)
				if err != nil {
					t.Fatal(err)
				}
				write = func() (int64, error) { return h.store.Update(t.Context(), "pods/a", revision, []byte("2"), 0) }
			}
			h.begin(t.Context())
			if _, err := write(); !errors.Is(err, storage.ErrUncertain) {
				t.Errorf("got %v, want ErrUncertain", err)
			}
			if value, err := h.store.Get(t.Context(), "pods/a"); err != nil || string(value.Data) != "2" {
				t.Errorf("%q is stored, want 2: %v", value.Data, err)
			}
		})
	}
}

// TestDroppedFirstAttempts lets raft drop the first attempt of a creation while the second one waits for its
// response. The first one is sent again, and has no effect after the object was deleted.
func TestDroppedFirstAttempts(t *testing.T) {
	second, third, deleted := make(chan struct{}), make(chan struct{}), make(chan struct{})
	applied := make(chan error, 1)
	h := newHandover(t, func(context.Context, clientv3.Txn, <-chan struct{}) (*clientv3.TxnResponse, error) {
		<-second
		return nil, status.Error(codes.Unknown, raft.ErrProposalDropped.Error())
	})
	h.second = func(txn clientv3.Txn) (*clientv3.TxnResponse, error) {
		close(second)
		<-third
		return txn.Commit()
	}
	h.third = func(ctx context.Context, txn clientv3.Txn) (*clientv3.TxnResponse, error) {
		close(third)
		go func() {
			<-deleted
			_, err := txn.Commit()
			applied <- err
		}()
		<-ctx.Done()
		return nil, ctx.Err()
	}
	h.begin(t.Context())
	revision, err := h.store.Create(t.Context(), "pods/a", []byte("1"), 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.store.Delete(t.Context(), "pods/a", revision); err != nil {
		t.Fatal(err)
	}
	close(deleted)
	if err := <-applied; err != nil {
		t.Fatal(err)
	}
	if value, err := h.store.Get(t.Context(), "pods/a"); !errors.Is(err, storage.ErrNotFound) {
		t.Errorf("the deleted object is there again: %q, %v", value.Data, err)
	}
}

// handover is a store whose leader changes during a write.
type handover struct {
	store    *storage.Store
	client   *clientv3.Client
	clock    *testclock.FakeClock
	changes  chan chan struct{} // each value is closed at the next change of the leader
	begun    chan struct{}      // a transaction has been sent, and the leader changes next
	repeated chan struct{}      // closed when the second transaction has been answered
	during   bool
	// second commits the second transaction, unless it is nil.
	second func(clientv3.Txn) (*clientv3.TxnResponse, error)
	// raise, unless it is nil, is called before the barrier is raised; its error prevents that.
	raise func() error
	third func(context.Context, clientv3.Txn) (*clientv3.TxnResponse, error) // commits the third one, if not nil
	// delayed commits the second transaction, unless it is nil. The leader then changes a second time.
	delayed func(context.Context, clientv3.Txn) (*clientv3.TxnResponse, error)
}

func newHandover(
	t *testing.T, first func(context.Context, clientv3.Txn, <-chan struct{}) (*clientv3.TxnResponse, error),
) *handover {
	t.Helper()
	client := etcdtest.Client(t)
	h := &handover{
		client: client, clock: testclock.NewFakeClock(time.Now()), changes: make(chan chan struct{}),
		begun: make(chan struct{}, 1), repeated: make(chan struct{}),
	}
	sent := 0
	raise := func() error {
		if h.raise == nil {
			return nil
		}
		return h.raise()
	}
	client.KV = &transactions{KV: client.KV, raise: raise,
		commit: func(ctx context.Context, txn clientv3.Txn) (*clientv3.TxnResponse, error) {
			if !h.during {
				return txn.Commit()
			}
			switch sent++; sent {
			case 1:
				h.begun <- struct{}{}
				return first(ctx, txn, h.repeated)
			case 2:
				defer close(h.repeated)
				if h.second != nil {
					return h.second(txn)
				}
				if h.delayed != nil {
					h.begun <- struct{}{}
					return h.delayed(ctx, txn)
				}
			case 3:
				if h.third != nil {
					return h.third(ctx, txn)
				}
			}
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

// begin changes the leader once the next transaction has been sent, and again if its repetition is delayed.
func (h *handover) begin(ctx context.Context) {
	next := <-h.changes
	h.during = true
	changes := 1
	if h.delayed != nil {
		changes = 2
	}
	go func() {
		for range changes {
			<-h.begun
			close(next)
			next = <-h.changes
			_ = wait.PollUntilContextCancel(ctx, time.Millisecond, true, func(context.Context) (bool, error) {
				return h.clock.HasWaiters(), nil
			})
			h.clock.Step(time.Second)
		}
	}()
}
