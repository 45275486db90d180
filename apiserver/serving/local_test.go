package serving

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/authentication"
)

func local(handler http.HandlerFunc) *http.Client {
	return &http.Client{
		Transport: Local{
			Handler: handler, User: &user.DefaultInfo{Name: "system:apiserver", Groups: []string{"system:masters"}},
		},
	}
}

func TestLocalCall(t *testing.T) {
	authenticator := authentication.New(authentication.Options{
		Clock: clock.RealClock{}, Registerer: prometheus.NewRegistry(),
	})
	hc := local(func(w http.ResponseWriter, r *http.Request) {
		who, ok, err := authenticator.AuthenticateRequest(r)
		if !ok || err != nil {
			t.Errorf("not authenticated: %v", err)
			return
		}
		r.Header.Set("X-Mine", "changed")
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("X-Answer", "yes")
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprint(w, who.User.GetName(), " ", who.User.GetGroups(), " ", r.RequestURI, " ", string(body))
	})
	r, _ := http.NewRequestWithContext(t.Context(), "POST", "https://anything/api/v1/pods?a=b", strings.NewReader("text"))
	r.Header.Set("X-Mine", "original")
	response, err := hc.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != 201 || response.Header.Get("X-Answer") != "yes" {
		t.Errorf("%d %v %v", response.StatusCode, response.Header, err)
	}
	if want := "system:apiserver [system:masters system:authenticated] /api/v1/pods?a=b text"; string(body) != want {
		t.Errorf("got %q, want %q", body, want)
	}
	if r.Header.Get("X-Mine") != "original" {
		t.Error("the caller's headers were changed")
	}
}

func TestLocalWatch(t *testing.T) {
	lines, ended := make(chan string), make(chan error, 1)
	hc := local(func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush()
		for {
			select {
			case line := <-lines:
				_, _ = io.WriteString(w, line+"\n")
			case <-r.Context().Done():
				ended <- r.Context().Err()
				return
			}
		}
	})
	response, err := hc.Get("https://anything/watch")
	if err != nil {
		t.Fatal(err)
	}
	reader := bufio.NewReader(response.Body)
	for _, line := range []string{"one", "two"} { // each arrives before the next is sent
		lines <- line
		if got, err := reader.ReadString('\n'); got != line+"\n" || err != nil {
			t.Errorf("got %q %v", got, err)
		}
	}
	_ = response.Body.Close()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the handler ended with %v", err)
	}
}

// TestLocalCallEndsWithItsContext uses handlers that do not look at theirs.
func TestLocalCallEndsWithItsContext(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	for _, begins := range []bool{false, true} {
		hc := local(func(w http.ResponseWriter, _ *http.Request) {
			if begins {
				w.(http.Flusher).Flush()
			}
			<-release
		})
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		r, _ := http.NewRequestWithContext(ctx, "GET", "https://anything/", nil)
		response, err := hc.Do(r)
		if err == nil {
			_, err = io.ReadAll(response.Body)
			_ = response.Body.Close()
		}
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("begins %v: %v", begins, err)
		}
	}
}

func TestLocalAbort(t *testing.T) {
	hc := local(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "half")
		panic(http.ErrAbortHandler)
	})
	response, err := hc.Get("https://anything/")
	if err != nil {
		t.Fatal(err)
	}
	if body, err := io.ReadAll(response.Body); err == nil {
		t.Errorf("a truncated response looks complete: %q", body)
	}
}

func TestEndpoints(t *testing.T) {
	for target, want := range map[string]int{
		"/debug/pprof": 302, "/debug/pprof/": 200, "/debug/pprof/goroutine": 200, "/debug/pprof/symbol": 200, "/other": 404,
	} {
		if got := code(Profiling(), target); got != want {
			t.Errorf("%s: %d, want %d", target, got, want)
		}
	}
	w := httptest.NewRecorder()
	handler, err := Version(version.Info{Major: "1", Minor: "36"})
	if err != nil {
		t.Fatal(err)
	}
	handler.ServeHTTP(w, httptest.NewRequest("GET", "/version", nil))
	if !strings.HasPrefix(w.Body.String(), "{\n  \"major\": \"1\",\n  \"minor\": \"36\",") ||
		w.Header().Get("Content-Type") != "application/json" {
		t.Errorf("version %s", w.Body)
	}
}
