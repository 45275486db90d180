package watchcache

import (
	"errors"
	"sync"
	"sync/atomic"

	"quorate.dev/apiserver/encoding"
)

// encodingOverhead is the approximate memory that an encoding takes in addition to its data, in bytes.
const encodingOverhead = 128

var errUnfinished = errors.New("encode object: interrupted by a panic")

// encodings has the existing encodings of one object or event. It is embedded in an Entry or a record, which is its
// owner.
type encodings struct {
	// list is replaced under budget.mu, never changed, and read without a lock. nil: empty. Invariant: no two
	// elements have the same format.
	list atomic.Pointer[[]*keptEncoding]

	// holders is the number of references to the owner from the tree and the ring. Guarded by Cache.mu.
	holders int32
	// retired is set when holders drops to 0; in detached entries it is always set. While it is set, new encodings are
	// not kept. Guarded by budget.mu.
	retired bool
	// detached is set in the encodings of detached entries, and never changes.
	detached bool
}

// keptEncoding is one encoding. once runs its encode function in the first caller that needs it; concurrent callers
// wait in once.
type keptEncoding struct {
	format encoding.Format
	owner  *encodings
	once   sync.Once
	data   []byte // written in once; read only after it
	err    error  // written and read like data

	used atomic.Bool // set if the encoding was used since the budget's hand last passed
	// kept is set while the encoding is in the budget's circle. Guarded by budget.mu. Invariant: kept implies that
	// owner.list contains the encoding and that prev and next are set.
	kept       bool
	prev, next *keptEncoding // neighbours in the circle; guarded by budget.mu
}

// find returns the encoding in a format, finished or not, or nil. It takes no lock. It compares the formats one by one,
// because an object has few.
func (e *encodings) find(format encoding.Format) *keptEncoding {
	list := e.list.Load()
	if list == nil {
		return nil
	}
	for _, x := range *list {
		if x.format == format {
			return x
		}
	}
	return nil
}

// get returns the encoding in a format. If it does not exist, get calls encode and keeps the result, unless the owner
// is retired. Concurrent callers share the result of a single call; therefore encode must depend only on the format and
// the owner. get waits for a concurrent caller even if the request's context has ended.
func (e *encodings) get(b *budget, format encoding.Format, encode func() ([]byte, error)) ([]byte, error) {
	x := e.find(format)
	if x == nil {
		x = b.claim(e, format)
	}
	x.once.Do(func() {
		x.err = errUnfinished // the error for concurrent callers if encode panics
		defer b.settle(x)
		x.data, x.err = encode()
	})
	if !x.used.Load() { // avoids contention for the cache line
		x.used.Store(true)
	}
	return x.data, x.err
}

// budget limits the memory of all encodings with the clock algorithm: a hand moves around a circle of encodings and
// evicts each encoding that was not used since the hand last passed it. Using an encoding takes no lock; evicting one
// takes amortized constant time.
type budget struct {
	limit int64 // bytes

	// mu may be taken while Cache.mu is held, never the reverse.
	mu    sync.Mutex
	spent int64         // Invariant: the sum of len(data)+encodingOverhead over the circle; after settle at most limit
	hand  *keptEncoding // next encoding to consider, before which new encodings are inserted; nil: the circle is empty
	count int

	evicted atomic.Int64
}

// claim adds an empty encoding to its owner, whose data the caller must set, or returns the one that another caller has
// added concurrently. If the owner is retired, the encoding is not added, and only the caller uses it.
func (b *budget) claim(owner *encodings, format encoding.Format) *keptEncoding {
	b.mu.Lock()
	defer b.mu.Unlock()
	if x := owner.find(format); x != nil {
		return x
	}
	x := &keptEncoding{format: format, owner: owner}
	if !owner.retired {
		owner.add(x)
	}
	return x
}

// finished returns an encoding of an owner if it has been made and is kept. Unlike get, finished never waits for
// another caller.
func (b *budget) finished(owner *encodings, format encoding.Format) ([]byte, bool) {
	if owner.list.Load() == nil {
		return nil, false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	x := owner.find(format)
	if x == nil || !x.kept {
		return nil, false
	}
	x.used.Store(true)
	return x.data, true
}

// settle adds a finished encoding to the circle, and evicts other encodings until the budget is within its limit. If
// encode has failed, settle removes the encoding from its owner, so that the next caller tries again.
func (b *budget) settle(x *keptEncoding) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if x.owner.retired {
		return
	}
	if x.err != nil {
		x.owner.remove(x)
		return
	}
	b.keep(x)
	for b.spent > b.limit && b.hand != nil {
		b.turn()
	}
}

// turn moves the hand by one encoding. It evicts the encoding if its used bit is not set, and clears the bit otherwise.
func (b *budget) turn() {
	x := b.hand
	if x.used.Swap(false) {
		b.hand = x.next
		return
	}
	b.forget(x)
	x.owner.remove(x)
	b.evicted.Add(1)
}

// retire drops all encodings of an owner to which the tree and the ring have no references any more.
func (b *budget) retire(owner *encodings) {
	b.mu.Lock()
	defer b.mu.Unlock()
	owner.retired = true
	list := owner.list.Swap(nil)
	if list == nil {
		return
	}
	for _, x := range *list {
		if x.kept {
			b.forget(x)
		}
	}
}

// keep inserts an encoding at the position that the hand reaches last. The caller holds mu.
func (b *budget) keep(x *keptEncoding) {
	x.kept = true
	b.spent += int64(len(x.data)) + encodingOverhead
	b.count++
	if b.hand == nil {
		b.hand, x.next, x.prev = x, x, x
		return
	}
	x.next, x.prev = b.hand, b.hand.prev
	x.prev.next, x.next.prev = x, x
}

// forget removes an encoding from the circle. The caller holds mu.
func (b *budget) forget(x *keptEncoding) {
	x.kept = false
	b.spent -= int64(len(x.data)) + encodingOverhead
	b.count--
	if x.next == x {
		b.hand = nil
		return
	}
	if b.hand == x {
		b.hand = x.next
	}
	x.prev.next, x.next.prev = x.next, x.prev
	x.prev, x.next = nil, nil
}

// usage returns the memory and the number of all encodings that are kept, for metrics.
func (b *budget) usage() (bytes int64, count int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.spent, b.count
}

// add replaces list with a copy that contains an additional encoding. The caller holds budget.mu.
func (e *encodings) add(x *keptEncoding) {
	var list []*keptEncoding
	if old := e.list.Load(); old != nil {
		list = append(make([]*keptEncoding, 0, len(*old)+1), *old...)
	}
	list = append(list, x)
	e.list.Store(&list)
}

// remove replaces list with a copy without an encoding. The caller holds budget.mu.
func (e *encodings) remove(x *keptEncoding) {
	old := e.list.Load()
	if old == nil {
		return
	}
	var list []*keptEncoding
	for _, other := range *old {
		if other != x {
			list = append(list, other)
		}
	}
	if len(list) == 0 {
		e.list.Store(nil)
		return
	}
	e.list.Store(&list)
}
