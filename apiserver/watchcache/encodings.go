package watchcache

import (
	"errors"
	"sync"
	"sync/atomic"

	"quorate.dev/apiserver/encoding"
)

// encodingOverhead is the approximate memory of an encoding beside its data, in bytes.
const encodingOverhead = 128

var errUnfinished = errors.New("making the encoding did not finish")

// encodings are the encodings of one object or event that exist now.
type encodings struct {
	// list is replaced, never changed, under budget.mu. Invariant: no two elements have the same format.
	list atomic.Pointer[[]*keptEncoding]

	// holders counts the tree and the ring records that hold the owner; guarded by Cache.mu.
	holders int32
	// retired is set when holders drops to 0: from then on, no encoding is kept. Guarded by budget.mu.
	retired bool
}

// keptEncoding is one encoding, made by the first caller that needs it while the others wait.
type keptEncoding struct {
	format encoding.Format
	owner  *encodings
	once   sync.Once
	data   []byte // written within once; read only after it
	err    error  // as data

	used atomic.Bool // since the budget's hand last passed
	// kept reports whether the budget has it in its circle; guarded by budget.mu. Invariant: kept implies that owner.list
	// contains it and that prev and next are set.
	kept       bool
	prev, next *keptEncoding // in the circle; guarded by budget.mu
}

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

// get returns the encoding in a format, made by encode if there is none. encode must depend on the format and on the
// owner only: concurrent callers share the result of one of them.
func (e *encodings) get(b *budget, format encoding.Format, encode func() ([]byte, error)) ([]byte, error) {
	x := e.find(format)
	if x == nil {
		x = b.claim(e, format)
	}
	x.once.Do(func() {
		x.err = errUnfinished // seen by the others if encode panics
		defer b.settle(x)
		x.data, x.err = encode()
	})
	if !x.used.Load() { // avoids contention for the cache line
		x.used.Store(true)
	}
	return x.data, x.err
}

// budget bounds the memory of all encodings by the clock algorithm: a hand moves around the circle of encodings and
// evicts each that was not used since the hand last passed.
type budget struct {
	limit int64 // bytes

	// mu may be taken while Cache.mu is held, never the reverse.
	mu    sync.Mutex
	spent int64         // Invariant: the sum of len(data)+encodingOverhead over the circle; at most limit after settle.
	hand  *keptEncoding // the oldest of the circle, before which new ones are inserted; nil: the circle is empty
	count int           // in the circle

	evicted atomic.Int64
}

// claim adds an encoding that is yet to be made, or returns the one that another caller has added meanwhile. That of a
// retired owner belongs to its caller alone.
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

// finished returns an encoding of an owner that has been made and is kept. Unlike get, it waits for no other caller.
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

// settle adds an encoding that has been made to the circle, or removes it from its owner if it failed, so that the next
// caller tries again.
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

// turn moves the hand by one. It evicts the encoding there, or clears its mark if it has been used.
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

// retire drops all encodings of an owner without holders.
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

func (b *budget) usage() (bytes int64, count int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.spent, b.count
}

func (e *encodings) add(x *keptEncoding) {
	var list []*keptEncoding
	if old := e.list.Load(); old != nil {
		list = append(make([]*keptEncoding, 0, len(*old)+1), *old...)
	}
	list = append(list, x)
	e.list.Store(&list)
}

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
