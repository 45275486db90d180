package serving

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
)

// http2Request returns a request as the HTTP/2 server passes it to the handler.
func http2Request(t *testing.T, path string) *http.Request {
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
	r.ProtoMajor, r.ProtoMinor = 2, 0
	return r
}

// TestWorkersServeAgain sends more concurrent requests than idle workers are kept, and then some requests in sequence,
// and counts the idle workers. After end, no worker is idle, and requests are still served.
func TestWorkersServeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		p := newWorkers(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			<-release
			w.WriteHeader(http.StatusTeapot)
		}))
		serve := func() {
			w := httptest.NewRecorder()
			p.ServeHTTP(w, http2Request(t, "/api"))
			if w.Code != http.StatusTeapot {
				t.Errorf("got the status %d", w.Code)
			}
		}
		var all sync.WaitGroup
		for range 2 * maxIdleWorkers {
			all.Go(serve)
		}
		synctest.Wait()
		close(release)
		all.Wait()
		synctest.Wait()
		for range 10 {
			serve()
			synctest.Wait()
			if n := p.waiting.Load(); n != maxIdleWorkers {
				t.Fatalf("%d workers wait", n)
			}
		}
		p.end()
		p.end()
		synctest.Wait()
		if n := p.waiting.Load(); n != 0 {
			t.Errorf("%d workers wait after the end", n)
		}
		serve()
	})
}

// TestWorkersPassOnPanics checks that a panic reaches the goroutine of the request, and the end of a worker's goroutine
// as a panic. Requests that have a goroutine of their own use no worker.
func TestWorkersPassOnPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newWorkers(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/panic":
				panic(http.ErrAbortHandler)
			case "/end":
				runtime.Goexit()
			}
		}))
		defer p.end()
		aborts := func(r *http.Request) (aborted bool) {
			defer func() {
				err, _ := recover().(error)
				aborted = errors.Is(err, http.ErrAbortHandler)
			}()
			p.ServeHTTP(httptest.NewRecorder(), r)
			return false
		}
		oldProtocol := http2Request(t, "/panic")
		oldProtocol.ProtoMajor = 1
		for _, r := range []*http.Request{oldProtocol, http2Request(t, "/panic?watch=1")} {
			if !aborts(r) || p.waiting.Load() != 0 {
				t.Errorf("%s: not aborted, or %d workers wait", r.URL, p.waiting.Load())
			}
		}
		for path, want := range map[string]bool{"/panic": true, "/end": true, "/api": false} {
			got := aborts(http2Request(t, path))
			synctest.Wait()
			if got != want || p.waiting.Load() > 1 {
				t.Errorf("%s: aborted %v, %d workers wait", path, got, p.waiting.Load())
			}
		}
	})
}
