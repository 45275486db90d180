package serving

import (
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
)

// maxIdleWorkers is the maximum number of workers that wait for a request. It exceeds the number of requests that
// usually run at the same time. A worker that becomes idle while that many others wait ends.
const maxIdleWorkers = 64

// workers runs the requests of HTTP/2 connections on goroutines that have served requests before. The HTTP/2 server
// starts a goroutine for each request. Its stack is small at first, and is copied to a larger one three or four times
// on the way through the filters and the handler, which takes about a tenth of the CPU time of a small request. The
// stack of a worker is large already. The garbage collector halves the stacks of waiting workers, so that an idle
// server does not keep them.
//
// A watch runs on the goroutine of the HTTP/2 server: there are many at a time, and a second goroutine for each would
// take memory. The same holds for HTTP/1, whose connections have a goroutine each.
type workers struct {
	next http.Handler
	// jobs passes requests to waiting workers.
	jobs chan *job
	// ended is closed by end, once.
	ended chan struct{}
	once  sync.Once
	// waiting is the number of workers that wait, or are about to.
	waiting atomic.Int64
}

// job is one request that a worker serves.
type job struct {
	w http.ResponseWriter
	r *http.Request
	// done gets the value of the handler's panic, or nil, when the request has been served.
	done chan any
}

func newWorkers(next http.Handler) *workers {
	return &workers{next: next, jobs: make(chan *job), ended: make(chan struct{})}
}

// end ends the waiting workers. Requests are served afterwards too, each on a new goroutine.
func (p *workers) end() { p.once.Do(func() { close(p.ended) }) }

// ServeHTTP implements http.Handler.
func (p *workers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor < 2 || isLong(r.URL) {
		p.next.ServeHTTP(w, r)
		return
	}
	j := &job{w: w, r: r, done: make(chan any, 1)}
	select {
	case p.jobs <- j:
	default:
		go p.work(j)
	}
	if reason := <-j.done; reason != nil {
		panic(reason)
	}
}

// isLong reports whether a request usually lasts long: a watch, or logs that are followed. Another request that lasts
// long only takes the memory of a second goroutine.
func isLong(url *url.URL) bool {
	return strings.Contains(url.RawQuery, "watch=") || strings.Contains(url.RawQuery, "follow=") ||
		strings.Contains(url.Path, "/watch/")
}

// work serves a first request, and then others, until enough other workers wait or the server closes.
func (p *workers) work(j *job) {
	for j != nil {
		p.serve(j)
		j = p.wait()
	}
}

// wait returns the next request, or nil if the worker is not needed any more.
func (p *workers) wait() *job {
	defer p.waiting.Add(-1)
	if p.waiting.Add(1) > maxIdleWorkers {
		return nil
	}
	select {
	case j := <-p.jobs:
		return j
	case <-p.ended:
		return nil
	}
}

// serve serves one request. It passes on a panic, so that the panic ends the request and not the process. A handler
// that ends its goroutine aborts the request too.
func (p *workers) serve(j *job) {
	reason := any(http.ErrAbortHandler)
	defer func() {
		if recovered := recover(); recovered != nil {
			reason = recovered
		}
		j.done <- reason
	}()
	p.next.ServeHTTP(j.w, j.r)
	reason = nil
}
