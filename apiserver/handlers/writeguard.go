package handlers

import (
	"net/http"
	"sync"
	"time"
)

const (
	// writeTimeout is the maximum time in which the client of a watch must read writeChunk bytes. kube-apiserver has no
	// such timeout: a client that stops reading occupies its handler and the pending events until the connection
	// breaks.
	writeTimeout = time.Minute
	writeChunk   = 64 << 10
	// lastWriteTimeout is the timeout of writes after the end of the watch.
	lastWriteTimeout = 5 * time.Second
)

// writeGuard aborts a response whose client does not read. With HTTP/2 it aborts the stream, not the connection.
type writeGuard struct {
	response http.ResponseWriter

	mu      sync.Mutex
	timeout time.Duration
	writing bool
	// deadline is the time at which the current write times out.
	deadline time.Time
	// timer calls check. Invariant: while writing is set, timer fires at the deadline or earlier.
	timer *time.Timer
	// ticking is set while the timer is running.
	ticking bool
}

func newWriteGuard(response http.ResponseWriter, timeout time.Duration) *writeGuard {
	g := &writeGuard{response: response, timeout: timeout}
	g.timer = time.AfterFunc(timeout, g.check)
	g.ticking = true
	return g
}

// begin must be called before each write, and end after it. The timer keeps running between writes: restarting it for
// each write would cost more than a call of check that does nothing.
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

// shorten replaces the timeout, also for the current write.
func (g *writeGuard) shorten(timeout time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.timeout, g.deadline = timeout, time.Now().Add(timeout)
	g.ticking = true
	g.timer.Reset(timeout)
}

// check aborts a write that is past its deadline. It holds the lock while it uses the response, so that end waits, and
// with it the handler, after whose return the response must not be used.
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

// stop stops the timer. It must be called before the handler returns.
func (g *writeGuard) stop() { g.timer.Stop() }
