package watchcache

import (
	"errors"
	"sync"
	"sync/atomic"
)

// Format is one way to encode an object or an event. Formats are told apart by address, so that there must be
// one value for each way, made once.
type Format struct {
	_ byte // values without contents may share an address
}

// encodingOverhead is about what an encoding takes in memory beside its data, in bytes.
const encodingOverhead = 128

var errUnfinished = errors.New("making the encoding did not finish")

// encodings are the encodings of one object or event that exist now.
type encodings struct {
	list atomic.Pointer[[]*encoding] // replaced, never changed, under budget.mu

	// holders counts the tree and the ring records that hold the owner; guarded by the cache's lock.
	holders int32
	// retired is set when nobody holds the owner any more: nothing is kept from then on. Guarded by budget.mu.
	retired bool
}

// encoding is one encoding, made by the first who wants it while the others wait.
type encoding struct {
	format *Format
	owner  *encodings
	once   sync.Once
	data   []byte
	err    error

	used       atomic.Bool // since the budget's hand last came by
	kept       bool        // the budget has it in its circle; guarded by budget.mu
	prev, next *encoding   // in the circle; guarded by budget.mu
}

func (e *encodings) find(format *Format) *encoding {
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

// get returns the encoding in a format, made by encode if there is none.
func (e *encodings) get(b *budget, format *Format, encode func() ([]byte, error)) ([]byte, error) {
	x := e.find(format)
	if x == nil {
		x = b.claim(e, format)
	}
	x.once.Do(func() {
		x.err = errUnfinished // what the others see if encode panics
		defer b.settle(x)
		x.data, x.err = encode()
	})
	if !x.used.Load() {
		x.used.Store(true)
	}
	return x.data, x.err
}

// budget bounds the memory of all encodings. When it is spent, encodings that nobody has used for a whole turn
// of the hand go first (the clock algorithm).
type budget struct {
	limit int64 // bytes

	mu    sync.Mutex
	spent int64
	hand  *encoding // the oldest of the circle; new ones are put just before it
	count int

	evicted atomic.Int64
}

// claim adds an encoding that is still to be made, unless another caller was faster.
func (b *budget) claim(owner *encodings, format *Format) *encoding {
	b.mu.Lock()
	defer b.mu.Unlock()
	if x := owner.find(format); x != nil {
		return x
	}
	x := &encoding{format: format, owner: owner}
	if !owner.retired {
		owner.add(x)
	}
	return x
}

// settle takes an encoding that has been made into account, or out of its owner's list if it failed.
func (b *budget) settle(x *encoding) {
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

// turn moves the hand by one: it evicts the encoding there or, if it has been used, lets it live another turn.
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

// retire forgets all encodings of an owner that nobody holds any more.
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

func (b *budget) keep(x *encoding) {
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

func (b *budget) forget(x *encoding) {
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

func (e *encodings) add(x *encoding) {
	var list []*encoding
	if old := e.list.Load(); old != nil {
		list = append(make([]*encoding, 0, len(*old)+1), *old...)
	}
	list = append(list, x)
	e.list.Store(&list)
}

func (e *encodings) remove(x *encoding) {
	old := e.list.Load()
	if old == nil {
		return
	}
	var list []*encoding
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
