package filters

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	clocktesting "k8s.io/utils/clock/testing"

	"quorate.dev/apiserver/audit"
	"quorate.dev/apiserver/config"
	"quorate.dev/apiserver/request"
)

// startAuditor returns an auditor with a policy, given as JSON, and its log file.
func startAuditor(t testing.TB, policy string, change func(*config.Audit)) (*audit.Auditor, string) {
	t.Helper()
	directory := t.TempDir()
	c := config.Default().Audit
	c.PolicyFile, c.Log.Path = filepath.Join(directory, "policy.yaml"), filepath.Join(directory, "audit.log")
	if change != nil {
		change(&c)
	}
	if err := os.WriteFile(
		c.PolicyFile, []byte(`{"apiVersion":"audit.k8s.io/v1","kind":"Policy",`+policy+`}`), 0o600,
	); err != nil {
		t.Fatal(err)
	}
	auditor, err := audit.New(c, audit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := auditor.Run(); err != nil {
		t.Fatal(err)
	}
	return auditor, c.Log.Path
}

// readEvents returns the events of a log.
func readEvents(t testing.TB, path string) []auditv1.Event {
	t.Helper()
	log, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var events []auditv1.Event
	lines := bufio.NewScanner(bytes.NewReader(log))
	for lines.Scan() {
		var event auditv1.Event
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
			t.Fatal(err)
		}
		events = append(events, event)
	}
	return events
}

// auditOne sends one request through the chain and returns its events and the response.
func auditOne(
	t *testing.T, r *http.Request, change func(*Options), handler http.HandlerFunc,
) ([]auditv1.Event, *httptest.ResponseRecorder) {
	t.Helper()
	auditor, log := startAuditor(t, `"rules":[{"level":"RequestResponse"}]`, nil)
	f := &fixture{registry: prometheus.NewRegistry(), drain: &request.Drain{}}
	chain := Chain(f.options(func(o *Options) {
		o.Auditor = auditor
		if change != nil {
			change(o)
		}
	}), handler)
	w := httptest.NewRecorder()
	func() {
		defer func() { _ = recover() }() // net/http would end the connection
		chain.ServeHTTP(w, r)
	}()
	auditor.Shutdown()
	return readEvents(t, log), w
}

func newAuditRequest(t *testing.T, target, who string) *http.Request {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, target, nil)
	r.Header.Set("Audit-Id", "id")
	if who != "" {
		r.Header.Set("Authorization", who)
	}
	return r
}

// stages returns the stages of events with the codes of their responses.
func stages(events []auditv1.Event) []string {
	var stages []string
	for _, event := range events {
		stage := string(event.Stage)
		if event.ResponseStatus != nil {
			stage += " " + http.StatusText(int(event.ResponseStatus.Code))
		}
		stages = append(stages, stage)
	}
	return stages
}

func TestAuditStages(t *testing.T) {
	ok := func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }
	for _, test := range []struct {
		name, target, who string
		handler           http.HandlerFunc
		want              []string
	}{
		{"ordinary", "/api/v1/pods", "alice", ok, []string{"RequestReceived", "ResponseComplete OK"}},
		{
			"watch", "/api/v1/pods?watch=1", "alice", ok, []string{
				"RequestReceived", "ResponseStarted OK", "ResponseComplete OK",
			},
		},
		{
			"long-running without a response", "/api/v1/namespaces/n/pods/p/log", "alice",
			func(http.ResponseWriter, *http.Request) {}, []string{
				"RequestReceived", "ResponseStarted OK", "ResponseComplete OK",
			},
		},
		{
			"implicit header", "/api/v1/pods", "alice",
			func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "body") },
			[]string{"RequestReceived", "ResponseComplete OK"},
		},
		{"forbidden", "/api/v1/pods", "mallory", ok, []string{"RequestReceived", "ResponseComplete Forbidden"}},
		{
			"authorization fails", "/broken", "alice", ok, []string{"RequestReceived", "ResponseComplete Internal Server Error"},
		},
		{"no user", "/api/v1/pods", "", ok, []string{"ResponseStarted Unauthorized"}},
		{"invalid credentials", "/api/v1/pods", "bad", ok, []string{"ResponseStarted Unauthorized"}},
		{"invalid timeout", "/api/v1/pods?timeout=x", "alice", ok, []string{"ResponseStarted Bad Request"}},
		{
			"panic", "/api/v1/pods", "alice", func(http.ResponseWriter, *http.Request) { panic("oops") },
			[]string{"RequestReceived", "Panic Internal Server Error"},
		},
		{
			"aborted", "/api/v1/pods", "alice", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
			[]string{"RequestReceived", "Panic Internal Server Error"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			events, _ := auditOne(t, newAuditRequest(t, test.target, test.who), nil, test.handler)
			if got := stages(events); !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestAuditOfPanic(t *testing.T) {
	events, w := auditOne(t, newAuditRequest(t, "/api/v1/pods", "alice"), nil,
		func(http.ResponseWriter, *http.Request) { panic("oops") })
	want := &metav1.Status{Status: "Failure", Code: 500, Reason: "InternalError", Message: "APIServer panic'd: oops"}
	if got := events[1].ResponseStatus; !cmp.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if w.Code != http.StatusInternalServerError {
		t.Errorf("got %d, want 500", w.Code)
	}
}

// A slow request has the latencies of its parts.
func TestAuditOfSlowRequest(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Now())
	events, _ := auditOne(t, newAuditRequest(t, "/version", "alice"), func(o *Options) { o.Clock = clock },
		func(w http.ResponseWriter, _ *http.Request) {
			clock.SetTime(clock.Now().Add(time.Second))
			w.WriteHeader(http.StatusOK)
		})
	if got := events[1].Annotations["apiserver.latency.k8s.io/total"]; got != "" {
		t.Errorf("total latency %s of a request without measured parts", got)
	}
	slow := slowAuthorizer{clock: clock}
	events, _ = auditOne(t, newAuditRequest(t, "/version", "alice"), func(o *Options) {
		o.Clock, o.Authorizer = clock, slow
	},
		func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	want := map[string]string{
		"authorization.k8s.io/decision": "allow", "authorization.k8s.io/reason": "slow",
		"apiserver.latency.k8s.io/authorization": "2s", "apiserver.latency.k8s.io/total": "2s",
	}
	if got := events[1].Annotations; !cmp.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// A request whose first event cannot be written fails in mode blocking-strict and is served in mode blocking.
func TestAuditLogFails(t *testing.T) {
	for mode, want := range map[string]int{
		config.AuditBlockingMode: http.StatusOK, config.AuditBlockingStrictMode: http.StatusInternalServerError,
	} {
		auditor, _ := startAuditor(t, `"rules":[{"level":"Metadata"}]`, func(c *config.Audit) {
			c.Log.Path, c.Log.MaxSize, c.Log.Mode = "/dev/full", 0, mode
		})
		f := &fixture{registry: prometheus.NewRegistry(), drain: &request.Drain{}}
		chain := Chain(f.options(func(o *Options) { o.Auditor = auditor }),
			http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }))
		w := httptest.NewRecorder()
		chain.ServeHTTP(w, newAuditRequest(t, "/version", "alice"))
		if w.Code != want {
			t.Errorf("%s: got %d %s, want %d", mode, w.Code, w.Body, want)
		}
	}
}

// slowAuthorizer takes two seconds.
type slowAuthorizer struct {
	clock *clocktesting.FakePassiveClock
}

func (s slowAuthorizer) Authorize(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
	s.clock.SetTime(s.clock.Now().Add(2 * time.Second))
	return authorizer.DecisionAllow, "slow", nil
}

func TestAttemptedMethods(t *testing.T) {
	for _, test := range []struct{ header, query, want string }{
		{"", "", "Authentication failed, no credentials provided"},
		{"Basic dXNlcjpwYXNz", "", "Authentication failed, attempted: basic"},
		{"BEARER t", "", "Authentication failed, attempted: bearer"},
		{"Bearer", "?access_token=x", "Authentication failed, attempted: access_token"},
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/"+test.query, nil)
		r.Header.Set("Authorization", test.header)
		if got := attemptedMethods(r); got != test.want {
			t.Errorf("%+v: got %q", test, got)
		}
	}
}
