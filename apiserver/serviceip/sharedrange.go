package serviceip

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	api "k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	"k8s.io/kubernetes/pkg/registry/core/service/allocator"

	"quorate.dev/apiserver/codec"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/storage"
)

const (
	// nodePortsPath is kube-apiserver's key of the allocated node ports, which are a RangeAllocation.
	nodePortsPath = "ranges/servicenodeports"
	// changeTimeout bounds the write of one batch of changes.
	changeTimeout = 10 * time.Second
)

var (
	errItemAllocated = errors.New("taken")
	errNoFreeItem    = errors.New("none left")
	errNotStored     = errors.New("cannot allocate resources of type servicenodeportallocations at this time")
)

func newRangeCodec(mediaType string) resource.Codec {
	internal := schema.GroupVersion{Version: runtime.APIVersionInternal}
	kind := corev1.SchemeGroupVersion.WithKind("RangeAllocation")
	return codec.NewScheme(legacyscheme.Scheme, legacyscheme.Codecs, kind, corev1.SchemeGroupVersion,
		internal).StoredAs(mediaType)
}

// change is one operation on a range, and its result.
type change struct {
	kind changeKind
	// item is the argument of allocate and release, and the result of allocateNext.
	item int
	err  error
	done chan struct{}
}

type changeKind int

const (
	allocate changeKind = iota
	allocateNext
	release
)

func (c *change) apply(items *allocator.AllocationBitmap) {
	ok := true
	switch c.kind {
	case allocate:
		if ok, c.err = items.Allocate(c.item); c.err == nil && !ok {
			c.err = errItemAllocated
		}
	case allocateNext:
		if c.item, ok, c.err = items.AllocateNext(); c.err == nil && !ok {
			c.err = errNoFreeItem
		}
	case release:
		c.err = items.Release(c.item)
	}
}

// sharedRange is a bitmap of allocated items that all API servers on one etcd share, including kube-apiserver.
// Concurrent changes are batched into one compare-and-swap.
type sharedRange struct {
	store *storage.Store
	path  string
	codec resource.Codec
	// spec is the value of RangeAllocation.range.
	spec string
	size int
	// offset is the number of items that AllocateNext returns only when all other items are allocated.
	offset int

	// mu guards the fields below. It is not held during requests.
	mu      sync.Mutex
	waiting []*change
	// running is set while a goroutine executes run. Invariant: waiting is empty while running is not set.
	running bool
	// lastKnown is the state that was last read or written.
	lastKnown snapshot
}

// snapshot is a stored state of the bitmap.
type snapshot struct {
	spec string
	data []byte
	// revision is 0 if the state is not stored or not known.
	revision int64
}

var _ allocator.Interface = &sharedRange{}

// Allocate implements allocator.Interface.
func (r *sharedRange) Allocate(item int) (bool, error) {
	c := r.do(allocate, item)
	if errors.Is(c.err, errItemAllocated) {
		return false, nil
	}
	return c.err == nil, c.err
}

// AllocateNext implements allocator.Interface.
func (r *sharedRange) AllocateNext() (int, bool, error) {
	c := r.do(allocateNext, 0)
	if errors.Is(c.err, errNoFreeItem) {
		return 0, false, nil
	}
	return c.item, c.err == nil, c.err
}

// Release implements allocator.Interface.
func (r *sharedRange) Release(item int) error { return r.do(release, item).err }

// ForEach implements allocator.Interface with the last known state.
func (r *sharedRange) ForEach(visit func(int)) {
	if items, err := r.items(r.last()); err == nil {
		items.ForEach(visit)
	}
}

// Has implements allocator.Interface with the last known state.
func (r *sharedRange) Has(item int) bool {
	items, err := r.items(r.last())
	return err == nil && items.Has(item)
}

// Free implements allocator.Interface with the last known state.
func (r *sharedRange) Free() int {
	items, err := r.items(r.last())
	if err != nil {
		return 0
	}
	return items.Free()
}

// Destroy implements allocator.Interface.
func (*sharedRange) Destroy() {}

func (r *sharedRange) last() snapshot {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.lastKnown
}

// do applies a change as part of the next batch and waits for its result.
func (r *sharedRange) do(kind changeKind, item int) *change {
	c := &change{kind: kind, item: item, done: make(chan struct{})}
	r.mu.Lock()
	r.waiting = append(r.waiting, c)
	if !r.running {
		r.running = true
		go r.run()
	}
	r.mu.Unlock()
	<-c.done
	return c
}

// run writes batches until no change is waiting.
func (r *sharedRange) run() {
	for batch := r.next(); batch != nil; batch = r.next() {
		ctx, cancel := context.WithTimeout(context.Background(), changeTimeout)
		err := r.write(ctx, batch)
		cancel()
		for _, c := range batch {
			if err != nil {
				c.err = err
			}
			close(c.done)
		}
	}
}

func (r *sharedRange) next() []*change {
	r.mu.Lock()
	defer r.mu.Unlock()
	batch := r.waiting
	r.waiting = nil
	r.running = batch != nil
	return batch
}

// write applies a batch to the last known state, stores the result, and retries after conflicts. A batch that changes
// nothing is applied again to the state read from etcd, so that no change is rejected because of stale state.
func (r *sharedRange) write(ctx context.Context, batch []*change) error {
	current, fresh := r.last(), false
	for {
		if current.revision == 0 && !fresh {
			var err error
			if current, err = r.load(ctx); err != nil {
				return err
			}
			fresh = true
		}
		if current.revision == 0 {
			return errNotStored
		}
		next, err := r.applied(batch, current)
		if err != nil {
			return err
		}
		if slices.Equal(next.data, current.data) {
			if fresh {
				return nil
			}
			current.revision = 0
			continue
		}
		if current, err = r.replace(ctx, current.revision, next); err == nil {
			return nil
		}
		var conflict *storage.ConflictError
		if !errors.As(err, &conflict) {
			return err
		}
		fresh = true
	}
}

// applied returns the state after a batch of changes.
func (r *sharedRange) applied(batch []*change, current snapshot) (snapshot, error) {
	items, err := r.items(current)
	if err != nil {
		return snapshot{}, err
	}
	for _, c := range batch {
		c.apply(items)
	}
	current.spec, current.data = items.Snapshot()
	return current, nil
}

// items returns a copy of the bitmap in a state.
func (r *sharedRange) items(s snapshot) (*allocator.AllocationBitmap, error) {
	items := allocator.NewAllocationMapWithOffset(r.size, r.spec, r.offset)
	if s.revision == 0 {
		return items, nil
	}
	return items, items.Restore(s.spec, s.data)
}

// load reads the state from etcd.
func (r *sharedRange) load(ctx context.Context) (snapshot, error) {
	value, err := r.store.Get(ctx, r.path)
	if errors.Is(err, storage.ErrNotFound) {
		return r.decode(ctx, storage.Value{})
	}
	if err != nil {
		return snapshot{}, err
	}
	return r.decode(ctx, value)
}

// decode decodes a stored value and sets the last known state.
func (r *sharedRange) decode(ctx context.Context, value storage.Value) (snapshot, error) {
	seen := snapshot{revision: value.Revision}
	if value.Revision != 0 {
		object, err := r.codec.Load(ctx, value.Data)
		if err != nil {
			return snapshot{}, fmt.Errorf("%s: %w", r.path, err)
		}
		stored := object.(*api.RangeAllocation)
		seen.spec, seen.data = stored.Range, stored.Data
	}
	r.remember(seen)
	return seen, nil
}

func (r *sharedRange) remember(s snapshot) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lastKnown = s
}

// replace stores a state if the stored revision is the given revision; 0 means that nothing is stored. Otherwise it
// returns the stored state and a *storage.ConflictError.
func (r *sharedRange) replace(ctx context.Context, revision int64, next snapshot) (snapshot, error) {
	data, err := r.codec.Store(ctx, &api.RangeAllocation{Range: next.spec, Data: next.data})
	if err != nil {
		return snapshot{}, err
	}
	next.revision, err = r.store.Update(ctx, r.path, revision, data, 0)
	var conflict *storage.ConflictError
	if errors.As(err, &conflict) {
		current, failure := r.decode(ctx, conflict.Current)
		if failure != nil {
			return snapshot{}, failure
		}
		return current, err
	}
	if err != nil {
		// The state is unknown, because the write may have succeeded.
		r.remember(snapshot{})
		return snapshot{}, err
	}
	r.remember(next)
	return next, nil
}
