package filters

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/apiserver/request"
)

// both runs a test over HTTP/1.1 and HTTP/2.
func both(t *testing.T, test func(t *testing.T, http1 bool)) {
	t.Run("HTTP1", func(t *testing.T) { test(t, true) })
	t.Run("HTTP2", func(t *testing.T) { test(t, false) })
}

func expectTimeout(t *testing.T, response *http.Response, body string) {
	t.Helper()
	var status metav1.Status
	if err := json.Unmarshal([]byte(body), &status); err != nil {
		t.Fatalf("%q: %v", body, err)
	}
	if response.StatusCode != 504 || status.Reason != metav1.StatusReasonTimeout ||
		!strings.HasSuffix(status.Message, "request did not complete within the allotted timeout") {
		t.Errorf("got %d %+v", response.StatusCode, status)
	}
	if response.Header.Get("Audit-Id") == "" {
		t.Error("the filters' headers are missing")
	}
}

func TestTimeoutOfPatientHandler(t *testing.T) {
	both(t, func(t *testing.T, http1 bool) {
		f := start(t, http1, nil, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Handler", "1")
			<-r.Context().Done()
			if r.URL.Query().Has("say") {
				request.WriteError(w, r, r.Context().Err())
			}
			if r.URL.Query().Has("fail") {
				request.WriteError(w, r, errors.New("call webhook: context deadline exceeded"))
			}
		})
		for _, target := range []string{
			"/api/v1/pods?timeout=20ms", "/api/v1/pods?timeout=20ms&say", "/api/v1/pods?timeout=20ms&fail",
		} {
			response, body := f.get(t, "GET", target, "alice")
			expectTimeout(t, response, body)
		}
		if got := f.final(t, "apiserver_request_terminations_total", `code="504"`, `verb="LIST"`); got != 3 {
			t.Errorf("%v terminations", got)
		}
	})
}

func TestTimeoutOfStubbornHandler(t *testing.T) {
	both(t, func(t *testing.T, http1 bool) {
		release := make(chan struct{})
		wrote := make(chan error, 1)
		f := start(t, http1, nil, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Handler", "1")
			<-release
			w.Header().Set("X-Late", "1")
			_, err := io.WriteString(w, "too late")
			wrote <- err
		})
		response, err := f.server.Client().Do(f.newRequest(t, "GET", "/api/v1/pods?timeout=20ms", "alice"))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = response.Body.Close() }()
		body := make([]byte, response.ContentLength)
		if _, err := io.ReadFull(response.Body, body); err != nil { // while the handler still runs
			t.Fatal(err)
		}
		expectTimeout(t, response, string(body))
		close(release)
		if err := <-wrote; !errors.Is(err, http.ErrHandlerTimeout) {
			t.Errorf("late write: %v", err)
		}
		if rest, err := io.ReadAll(response.Body); err != nil || len(rest) > 0 {
			t.Errorf("after the response: %q, %v", rest, err)
		}
		if response.Header.Get("X-Handler") != "" {
			t.Error("the handler's headers were sent")
		}
	})
}

func TestTimeoutInTheMiddle(t *testing.T) {
	both(t, func(t *testing.T, http1 bool) {
		f := start(t, http1, nil, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, "half")
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		})
		response, err := f.server.Client().Do(f.newRequest(t, "GET", "/api/v1/pods?timeout=20ms", "alice"))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = response.Body.Close() }()
		if body, err := io.ReadAll(response.Body); err == nil {
			t.Errorf("a truncated response looks complete: %q", body)
		}
		if got := f.final(t, "apiserver_request_aborts_total"); got != 1 {
			t.Errorf("%v aborts", got)
		}
	})
}

// TestTimeoutAfterAnError checks that an error is complete although its handler returns after the deadline, and that a
// second request on the connection succeeds.
func TestTimeoutAfterAnError(t *testing.T) {
	both(t, func(t *testing.T, http1 bool) {
		f := start(t, http1, nil, func(w http.ResponseWriter, r *http.Request) {
			request.WriteError(w, r, errors.New("call webhook: broken"))
			<-r.Context().Done()
		})
		for range 2 {
			response, body := f.get(t, "GET", "/api/v1/pods?timeout=300ms", "alice")
			if response.StatusCode != http.StatusInternalServerError || !strings.Contains(body, "broken") {
				t.Errorf("got %d %s", response.StatusCode, body)
			}
		}
		if got := f.final(t, "apiserver_request_aborts_total"); got != 0 {
			t.Errorf("%v aborts", got)
		}
	})
}

// TestTimeoutOfSlowClient checks that a client that does not read, or does not send, cannot hold a handler.
func TestTimeoutOfSlowClient(t *testing.T) {
	both(t, func(t *testing.T, http1 bool) {
		ended := make(chan error, 1)
		f := newFixture(t, nil, func(w http.ResponseWriter, r *http.Request) {
			if r.Method == "POST" {
				_, err := io.ReadAll(r.Body)
				ended <- err
				return
			}
			var err error
			for err == nil {
				_, err = w.Write(make([]byte, 1<<16))
			}
			ended <- err
		})
		if http1 {
			// Without TLS, because crypto/tls waits five seconds for the client when net/http closes the connection.
			f.server.Start()
		} else {
			f.server.EnableHTTP2 = true
			f.server.StartTLS()
		}
		response, err := f.server.Client().Do(f.newRequest(t, "GET", "/api/v1/pods?timeout=50ms", "alice"))
		if err != nil {
			t.Fatal(err)
		}
		if err := <-ended; err == nil {
			t.Error("the write ended without an error")
		}
		_ = response.Body.Close()

		body, sender := io.Pipe()
		r := f.newRequest(t, "POST", "/api/v1/namespaces/a/pods?timeout=50ms", "alice")
		r.Body, r.ContentLength = body, -1
		if response, err := f.server.Client().Do(r); err == nil {
			_ = response.Body.Close()
		}
		if err := <-ended; err == nil {
			t.Error("the read ended without an error")
		}
		_ = sender.Close()
	})
}

func TestTimeoutParameter(t *testing.T) {
	f := start(t, false, nil, func(w http.ResponseWriter, r *http.Request) {
		if _, bounded := r.Context().Deadline(); bounded {
			_, _ = io.WriteString(w, "bounded")
		}
	})
	response, body := f.get(t, "GET", "/api/v1/pods?timeout=soon", "alice")
	expect(t, response, body, 400,
		`{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"invalid timeout specified in the request URL - time: invalid duration \"soon\"","reason":"BadRequest","code":400}`+"\n")
	for target, want := range map[string]string{
		"/api/v1/pods": "bounded", "/api/v1/pods?timeout=0s": "bounded", "/api/v1/pods?timeout=9h": "bounded",
		"/api/v1/pods?watch=1&timeout=1s": "", "/api/v1/namespaces/a/pods/b/log": "",
	} {
		if _, body := f.get(t, "GET", target, "alice"); body != want {
			t.Errorf("%s: %q, want %q", target, body, want)
		}
	}
}

func TestDraining(t *testing.T) {
	entered := make(chan struct{})
	f := start(t, false, nil, func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.RawQuery, "watch") {
			w.(http.Flusher).Flush()
			close(entered)
			<-r.Context().Done()
			_, _ = io.WriteString(w, "the end")
		}
	})
	watched := make(chan string)
	go func() {
		_, body := f.get(t, "GET", "/api/v1/pods?watch=1", "alice")
		watched <- body
	}()
	<-entered
	if got := f.value(t, "apiserver_longrunning_requests", `verb="WATCH"`); got != 1 {
		t.Errorf("%v long-running requests", got)
	}
	idle, ended := f.drain.Requests.Close(), f.drain.Watches.Close()
	f.drain.Watches.End(1)
	if body := <-watched; body != "the end" {
		t.Errorf("the watch ended with %q", body)
	}
	<-ended
	<-idle
	want := `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"apiserver is shutting down","reason":"ServiceUnavailable","code":503}` + "\n"
	for _, target := range []string{"/api/v1/pods", "/api/v1/pods?watch=1"} {
		response, body := f.get(t, "GET", target, "alice")
		expect(t, response, body, 503, want)
		if response.Header.Get("Retry-After") != "1" {
			t.Errorf("Retry-After %q", response.Header.Get("Retry-After"))
		}
	}
	f.drain.Refuse()
	response, body := f.get(t, "GET", "/api/v1/pods", "alice")
	expect(t, response, body, 429, "The apiserver is shutting down, please try again later.\n")
	if got := response.Header.Get("Retry-After"); got != "1" {
		t.Errorf("got Retry-After %q while draining, want 1", got)
	}
	if response, _ := f.get(t, "GET", "/readyz", "alice"); response.StatusCode != 200 {
		t.Errorf("readyz got %d", response.StatusCode)
	}
}
