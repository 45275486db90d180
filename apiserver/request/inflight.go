package request

import (
	"context"
	"sync"
	"sync/atomic"
)

// Inflight counts the requests in flight, so that a shutdown can wait for them. The zero value is ready to use.
type Inflight struct {
	mu     sync.Mutex
	count  int
	closed bool
	// idle is created by Close, and closed when count has become 0.
	idle chan struct{}
}

// Enter counts a request and returns true, unless Close has been called. If it returns true, the caller must call
// Leave.
func (i *Inflight) Enter() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closed {
		return false
	}
	i.count++
	return true
}

// Leave removes a request from the count.
func (i *Inflight) Leave() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.count--
	if i.closed && i.count == 0 {
		close(i.idle)
	}
}

// Close makes Enter return false. It returns a channel that is closed when the last request has left.
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

// Count returns the number of requests in flight.
func (i *Inflight) Count() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.count
}

// Watches tracks the running watches, so that a shutdown can end them. The zero value is ready to use.
type Watches struct {
	inflight Inflight

	mu   sync.Mutex
	next int
	// open maps the numbers that Enter returned to functions that end the watches. It omits watches that End has
	// cancelled.
	open map[int]context.CancelFunc
}

// Enter registers a watch, unless Close has been called. end must make the watch return without an error. If ok is
// true, the caller must call Leave with the number.
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

// Leave unregisters a watch.
func (w *Watches) Leave(number int) {
	w.mu.Lock()
	delete(w.open, number)
	w.mu.Unlock()
	w.inflight.Leave()
}

// Close makes Enter return false for ok. It returns a channel that is closed when the last watch has left.
func (w *Watches) Close() <-chan struct{} { return w.inflight.Close() }

// Count returns the number of running watches.
func (w *Watches) Count() int { return w.inflight.Count() }

// End ends up to n watches and returns the number of watches it has ended.
func (w *Watches) End(n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	cancelled := 0
	for number, end := range w.open {
		if cancelled == n {
			break
		}
		end()
		delete(w.open, number)
		cancelled++
	}
	return cancelled
}

// Drain is the state of a graceful shutdown that the server shares with the filters.
type Drain struct {
	// Requests counts the requests that are not long-running.
	Requests Inflight
	Watches  Watches
	moving   atomic.Bool
	refusing atomic.Bool
}

// MoveClients makes the filters close each HTTP/2 connection that has a new request, so that the client reconnects to
// another replica.
func (d *Drain) MoveClients() { d.moving.Store(true) }

// MovingClients reports whether MoveClients has been called.
func (d *Drain) MovingClients() bool { return d.moving.Load() }

// Refuse makes the filters respond to new requests with 429 and Retry-After.
func (d *Drain) Refuse() { d.refusing.Store(true) }

// Refusing reports whether Refuse has been called.
func (d *Drain) Refusing() bool { return d.refusing.Load() }
