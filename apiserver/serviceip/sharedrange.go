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
	// nodePortsPath is where kube-apiserver keeps the node ports in use: a RangeAllocation, written by compare-and-swap.
	nodePortsPath = "ranges/servicenodeports"
	// changeTimeout bounds one change of a shared range.
	changeTimeout = 10 * time.Second
)

var (
	errTaken    = errors.New("taken")
	errNoneLeft = errors.New("none left")
	errNotThere = errors.New("cannot allocate resources of type servicenodeportallocations at this time")

	rangeModel = newRangeModel()
)

func newRangeModel() resource.Codec {
	internal := schema.GroupVersion{Version: runtime.APIVersionInternal}
	kind := corev1.SchemeGroupVersion.WithKind("RangeAllocation")
	return codec.NewScheme(legacyscheme.Scheme, legacyscheme.Codecs, kind, corev1.SchemeGroupVersion, internal)
}

// change is something to be done to a range: take a certain item, take any, or give one back.
type change struct {
	kind changeKind
	item int // which one; of takeAny: which it was
	err  error
	done chan struct{}
}

type changeKind int

const (
	take changeKind = iota
	takeAny
	giveBack
)

func (c *change) apply(items *allocator.AllocationBitmap) {
	ok := true
	switch c.kind {
	case take:
		if ok, c.err = items.Allocate(c.item); c.err == nil && !ok {
			c.err = errTaken
		}
	case takeAny:
		if c.item, ok, c.err = items.AllocateNext(); c.err == nil && !ok {
			c.err = errNoneLeft
		}
	case giveBack:
		c.err = items.Release(c.item)
	}
}

// sharedRange is a range of items, each in use or free, that all API servers on one etcd share, kube-apiserver among
// them. All changes that wait at the same moment are one write.
type sharedRange struct {
	store  *storage.Store
	path   string
	spec   string // of the range, as in RangeAllocation.range
	size   int
	offset int // items below it are the last to be given unasked

	mu      sync.Mutex
	waiting []*change
	running bool
	known   snapshot // as last seen
}

// snapshot is the stored state of a range.
type snapshot struct {
	spec     string
	data     []byte
	revision int64 // 0: not stored, or never looked
}

var _ allocator.Interface = &sharedRange{}

// Allocate implements allocator.Interface.
func (r *sharedRange) Allocate(item int) (bool, error) {
	c := r.do(take, item)
	if errors.Is(c.err, errTaken) {
		return false, nil
	}
	return c.err == nil, c.err
}

// AllocateNext implements allocator.Interface.
func (r *sharedRange) AllocateNext() (int, bool, error) {
	c := r.do(takeAny, 0)
	if errors.Is(c.err, errNoneLeft) {
		return 0, false, nil
	}
	return c.item, c.err == nil, c.err
}

// Release implements allocator.Interface.
func (r *sharedRange) Release(item int) error { return r.do(giveBack, item).err }

// ForEach implements allocator.Interface. It tells what was last seen.
func (r *sharedRange) ForEach(visit func(int)) {
	if items, err := r.items(r.last()); err == nil {
		items.ForEach(visit)
	}
}

// Has implements allocator.Interface. It tells what was last seen.
func (r *sharedRange) Has(item int) bool {
	items, err := r.items(r.last())
	return err == nil && items.Has(item)
}

// Free implements allocator.Interface. It tells what was last seen.
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
	return r.known
}

// do makes a change together with the others that wait.
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

// run makes changes until nobody waits.
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

// write applies a batch to the state last seen and stores the result, again and again until that was the state. Where
// nothing is to be stored it makes sure of the state by reading, so that what is refused is refused with reason.
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
			return errNotThere
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

// applied is the state after a batch.
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

// items are those of a state, free to be changed.
func (r *sharedRange) items(s snapshot) (*allocator.AllocationBitmap, error) {
	items := allocator.NewAllocationMapWithOffset(r.size, r.spec, r.offset)
	if s.revision == 0 {
		return items, nil
	}
	return items, items.Restore(s.spec, s.data)
}

// load reads what is stored.
func (r *sharedRange) load(ctx context.Context) (snapshot, error) {
	value, err := r.store.Get(ctx, r.path)
	if errors.Is(err, storage.ErrNotFound) {
		return r.see(storage.Value{})
	}
	if err != nil {
		return snapshot{}, err
	}
	return r.see(value)
}

// see decodes what is stored and remembers it.
func (r *sharedRange) see(value storage.Value) (snapshot, error) {
	seen := snapshot{revision: value.Revision}
	if value.Revision != 0 {
		object, err := rangeModel.Load(value.Data)
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
	r.known = s
}

// replace stores a state where the given revision is, 0 for none; else it returns what is there, and a
// *storage.ConflictError.
func (r *sharedRange) replace(ctx context.Context, revision int64, next snapshot) (snapshot, error) {
	data, err := rangeModel.Store(&api.RangeAllocation{Range: next.spec, Data: next.data})
	if err != nil {
		return snapshot{}, err
	}
	next.revision, err = r.store.Update(ctx, r.path, revision, data, 0)
	var conflict *storage.ConflictError
	if errors.As(err, &conflict) {
		current, failure := r.see(conflict.Current)
		if failure != nil {
			return snapshot{}, failure
		}
		return current, err
	}
	if err != nil {
		r.remember(snapshot{}) // it may have been stored
		return snapshot{}, err
	}
	r.remember(next)
	return next, nil
}
