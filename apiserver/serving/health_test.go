package serving

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apiserver/pkg/server/healthz"
	testclock "k8s.io/utils/clock/testing"
)

func newHealth(c *testclock.FakeClock, grace time.Duration) *Health {
	return NewHealth(grace, c, logr.Discard())
}

// TestHealthLikeUpstream compares responses with the responses of kube-apiserver's health handlers for the same checks.
func TestHealthLikeUpstream(t *testing.T) {
	h := newHealth(testclock.NewFakeClock(time.Now()), 0)
	var failure error
	h.Add(AllEndpoints, Check{Name: "etcd", Run: func(context.Context) error { return failure }})
	h.Add(AllEndpoints, Check{Name: "poststarthook/one", Group: "hooks", Run: func(context.Context) error { return nil }})
	theirs := http.NewServeMux()
	healthz.InstallLivezHandler(theirs,
		healthz.PingHealthz,
		healthz.NamedCheck("etcd", func(*http.Request) error { return failure }),
		healthz.NamedGroupedCheck("poststarthook/one", "hooks", func(*http.Request) error { return nil }),
	)
	for _, failure = range []error{nil, errors.New("no leader")} {
		for _, target := range []string{
			"/livez", "/livez?verbose", "/livez?verbose=1&exclude=etcd", "/livez?exclude=etcd", "/livez?exclude=nothing&verbose",
			"/livez?exclude=hooks&verbose", "/livez?exclude=b&exclude=a&verbose", "/livez/etcd", "/livez/ping",
			"/livez/poststarthook/one", "/livez/nothing",
		} {
			r := httptest.NewRequest("GET", target, nil)
			got, want := httptest.NewRecorder(), httptest.NewRecorder()
			h.ServeHTTP(got, r)
			theirs.ServeHTTP(want, r)
			if got.Code != want.Code || got.Body.String() != want.Body.String() {
				t.Errorf("%s with %v\n got %d %q\nwant %d %q", target, failure, got.Code, got.Body, want.Code, want.Body)
			}
			for _, header := range []string{"Content-Type", "X-Content-Type-Options"} {
				if target != "/livez/ping" && got.Code != 200 && got.Header().Get(header) != want.Header().Get(header) {
					t.Errorf("%s: header %s is %q, want %q", target, header, got.Header().Get(header), want.Header().Get(header))
				}
			}
		}
	}
}

// An advisory check is reported without failing its endpoint.
func TestAdvisoryCheck(t *testing.T) {
	h := newHealth(testclock.NewFakeClock(time.Now()), 0)
	h.Add(Readyz,
		Check{Name: "etcd-space", Advisory: true,
			Run: func(context.Context) error { return errors.New("the database is full") }})
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", "/readyz?verbose", nil))
	const want = "[+]ping ok\n[!]etcd-space warning: the database is full\n[+]shutdown ok\nreadyz check passed\n"
	if w.Code != http.StatusOK || w.Body.String() != want {
		t.Errorf("got %d %q, want %q", w.Code, w.Body, want)
	}
	if code(h, "/readyz") != http.StatusOK || code(h, "/readyz/etcd-space") != http.StatusInternalServerError ||
		!h.Passes(t.Context(), "readyz") {
		t.Error("the path of an advisory check must fail, but not its endpoint")
	}
}

func code(h http.Handler, target string) int {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", target, nil))
	return w.Code
}

func TestShutDownFailsReadinessOnly(t *testing.T) {
	h := newHealth(testclock.NewFakeClock(time.Now()), 0)
	if code(h, "/readyz") != 200 {
		t.Error("not ready before")
	}
	h.ShutDown()
	if got := []int{code(h, "/readyz"), code(
		h, "/readyz/shutdown",
	), code(h, "/livez"), code(h, "/healthz")}; got[0] != 500 || got[1] != 500 || got[2] != 200 || got[3] != 200 {
		t.Errorf("after: %v", got)
	}
}

func TestStartUpGrace(t *testing.T) {
	c := testclock.NewFakeClock(time.Now())
	h := newHealth(c, time.Minute)
	h.Add(AllEndpoints, Check{
		Name: "hook", StartUp: true, Run: func(context.Context) error { return errors.New("not yet") },
	})
	if live, ready := code(h, "/livez"), code(h, "/readyz"); live != 200 || ready != 500 {
		t.Errorf("during the grace period: livez %d, readyz %d", live, ready)
	}
	c.Step(time.Minute)
	if live := code(h, "/livez"); live != 500 {
		t.Errorf("after it: livez %d", live)
	}
}
