package filters

import (
	"io"
	"net/http"
	"testing"
	"time"
)

// endless writes until a write fails, and reports that.
func endless(ended chan<- error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !r.URL.Query().Has("endless") {
			return
		}
		var err error
		for err == nil {
			_, err = w.Write(make([]byte, 1<<20))
		}
		ended <- err
	}
}

// open sends a request and returns its response, whose body the test reads or not.
func (f *fixture) open(t *testing.T, target, who string) *http.Response {
	t.Helper()
	response, err := f.server.Client().Do(f.newRequest(t, "GET", target, who))
	if err != nil {
		t.Fatal(err)
	}
	return response
}

func (f *fixture) code(t *testing.T, target, who string) int {
	t.Helper()
	response, _ := f.get(t, "GET", target, who)
	return response.StatusCode
}

// TestUnreadResponsesHoldNoSlot leaves a response unread: it gives its only slot back, and its user gets no second one.
func TestUnreadResponsesHoldNoSlot(t *testing.T) {
	both(t, func(t *testing.T, http1 bool) {
		ended := make(chan error, 1)
		f := start(t, http1, func(o *Options) {
			o.MaxRequestsInFlight = 1
			o.Responses = SendLimits{Stalled: 10 * time.Millisecond, PerUser: 1, Window: time.Hour}
		}, endless(ended))
		response := f.open(t, podsPath+"?endless", "alice")
		eventuallyTrue(t, func() bool { return f.value(t, "quorate_stalled_responses") == 1 })
		eventuallyTrue(t, func() bool { return f.code(t, podsPath, "bob") == http.StatusOK })
		// The kernel may take more of the response for a moment, which is then not stalled.
		eventuallyTrue(t, func() bool { return f.code(t, podsPath, "alice") == http.StatusTooManyRequests })
		if code := f.code(t, podsPath, "root"); code != http.StatusOK {
			t.Errorf("an administrator: %d", code)
		}
		_ = response.Body.Close()
		if err := <-ended; err == nil {
			t.Error("the write ended without an error")
		}
		eventuallyTrue(t, func() bool { return f.code(t, podsPath, "alice") == http.StatusOK })
	})
}

// TestUnreadResponsesAreReset leaves responses of each kind unread until the server ends them.
func TestUnreadResponsesAreReset(t *testing.T) {
	for name, target := range map[string]string{
		"ordinary": podsPath + "?endless", "long-running": "/api/v1/namespaces/a/pods/b/log?endless",
	} {
		t.Run(name, func(t *testing.T) {
			ended := make(chan error, 1)
			f := start(t, false, func(o *Options) {
				o.Responses = SendLimits{
					Stalled: time.Millisecond, Window: 20 * time.Millisecond, LongRunningWindow: 20 * time.Millisecond,
				}
			}, endless(ended))
			response := f.open(t, target, "alice")
			defer func() { _ = response.Body.Close() }()
			if err := <-ended; err == nil {
				t.Error("the write ended without an error")
			}
			if _, err := io.Copy(io.Discard, response.Body); err == nil {
				t.Error("a response that was reset looks complete")
			}
			if n := f.value(t, "quorate_reset_responses_total"); n != 1 {
				t.Errorf("%v responses were reset", n)
			}
		})
	}
}

// TestSlowResponsesComplete reads a response with pauses that are longer than Stalled, not than Window.
func TestSlowResponsesComplete(t *testing.T) {
	const size = 8 << 20
	f := start(t, false, func(o *Options) {
		o.Responses = SendLimits{Stalled: time.Nanosecond, Window: time.Minute}
	}, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, size)) })
	response := f.open(t, podsPath, "alice")
	defer func() { _ = response.Body.Close() }()
	eventuallyTrue(t, func() bool { return f.value(t, "quorate_stalled_responses") == 1 })
	if n, err := io.Copy(io.Discard, response.Body); err != nil || n != size {
		t.Fatalf("%d bytes, %v", n, err)
	}
	eventuallyTrue(t, func() bool { return f.value(t, "quorate_stalled_responses") == 0 })
}
