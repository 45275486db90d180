package request

import (
	"context"
	"sync"
	"sync/atomic"
)

// Inflight counts the requests being served, so that a stop can wait for them. The zero value is ready for use.
type Inflight struct {
	mu     sync.Mutex
	count  int
	closed bool
	idle   chan struct{} // closed when the count reaches zero after Close
}

// Enter counts a request in, unless the server no longer takes any. Leave must follow a true.
func (i *Inflight) Enter() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closed {
		return false
	}
	i.count++
	return true
}

// Leave counts a request out.
func (i *Inflight) Leave() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.count--
	if i.closed && i.count == 0 {
		close(i.idle)
	}
}

// Close makes Enter refuse from now on and returns a channel that closes when the last request has left.
func (i *Inflight) Close() <-chan struct{} {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closed {
		return i.idle
	}
	i.closed, i.idle = true, make(chan struct{})
	if i.count == 0 {
		close(i.idle)
	}
	return i.idle
}

// Count returns how many requests are being served.
func (i *Inflight) Count() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.count
}

// Watches holds the watches being served, so that a stop can end them. The zero value is ready for use.
type Watches struct {
	inflight Inflight

	mu   sync.Mutex
	next int
	open map[int]context.CancelFunc // by the number Enter gave; without those already told to end
}

// Enter counts a watch in, unless the server no longer takes any. end must make it return without an error.
// Leave must be called with the number returned, if ok.
func (w *Watches) Enter(end context.CancelFunc) (number int, ok bool) {
	if !w.inflight.Enter() {
		return 0, false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.open == nil {
		w.open = make(map[int]context.CancelFunc)
	}
	w.next++
	w.open[w.next] = end
	return w.next, true
}

// Leave counts a watch out.
func (w *Watches) Leave(number int) {
	w.mu.Lock()
	delete(w.open, number)
	w.mu.Unlock()
	w.inflight.Leave()
}

// Close makes Enter refuse from now on and returns a channel that closes when the last watch has left.
func (w *Watches) Close() <-chan struct{} { return w.inflight.Close() }

// Count returns how many watches are being served.
func (w *Watches) Count() int { return w.inflight.Count() }

// End tells up to n watches to end and returns how many it told.
func (w *Watches) End(n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	told := 0
	for number, end := range w.open {
		if told == n {
			break
		}
		end()
		delete(w.open, number)
		told++
	}
	return told
}

// Drain is what the filters tell a stopping server, and it them.
type Drain struct {
	Requests Inflight // those that are not long-running
	Watches  Watches
	refusing atomic.Bool
}

// Refuse makes the filters answer new requests with 429 and Retry-After.
func (d *Drain) Refuse() { d.refusing.Store(true) }

// Refusing tells whether Refuse has been called.
func (d *Drain) Refusing() bool { return d.refusing.Load() }
