package handlers

import (
	"net/http"
	"sync"
	"time"
)

const (
	// writeTimeout is how long a client of a watch may take to read writeChunk bytes. kube-apiserver waits until the
	// connection breaks: a client that stops reading holds its handler and what is to be sent for as long as it likes.
	writeTimeout = time.Minute
	writeChunk   = 64 << 10
	// lastWriteTimeout is the same for a watch that is over.
	lastWriteTimeout = 5 * time.Second
)

// writeGuard cuts off a response whose client does not read: with HTTP/2, the stream and not its connection.
type writeGuard struct {
	response http.ResponseWriter

	mu       sync.Mutex
	timeout  time.Duration
	writing  bool
	deadline time.Time   // of the write under way
	timer    *time.Timer // Invariant: while writing, it fires at the deadline or before.
	ticking  bool
}

func newWriteGuard(response http.ResponseWriter, timeout time.Duration) *writeGuard {
	g := &writeGuard{response: response, timeout: timeout}
	g.timer = time.AfterFunc(timeout, g.check)
	g.ticking = true
	return g
}

// begin precedes a write, and end follows it.
func (g *writeGuard) begin() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.writing, g.deadline = true, time.Now().Add(g.timeout)
	if !g.ticking {
		g.ticking = true
		g.timer.Reset(g.timeout)
	}
}

func (g *writeGuard) end() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.writing = false
}

// shorten bounds the write under way, and those that follow, by another timeout.
func (g *writeGuard) shorten(timeout time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.timeout, g.deadline = timeout, time.Now().Add(timeout)
	g.ticking = true
	g.timer.Reset(timeout)
}

// check makes a write that has taken too long fail. It holds the lock: the response must not be touched once its handler
// has returned, which is not before the write has ended.
func (g *writeGuard) check() {
	g.mu.Lock()
	defer g.mu.Unlock()
	left := time.Until(g.deadline)
	switch {
	case !g.writing:
		g.ticking = false
	case left > 0:
		g.timer.Reset(left)
	default:
		_ = http.NewResponseController(g.response).SetWriteDeadline(time.Unix(1, 0))
	}
}

// stop gives back the timer.
func (g *writeGuard) stop() { g.timer.Stop() }
