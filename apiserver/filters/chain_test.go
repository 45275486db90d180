package filters

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	upstream "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/request"
	"quorate.dev/apiserver/resource"
)

// byName authenticates by the user named in the Authorization header; "bad" is an error, and no header is no user.
type byName struct{}

func (byName) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	name := r.Header.Get("Authorization")
	switch name {
	case "":
		return nil, false, nil
	case "bad":
		return nil, false, errors.New("bad credentials")
	case "root":
		return &authenticator.Response{
			User: &user.DefaultInfo{Name: name, Groups: []string{user.SystemPrivilegedGroup}},
		}, true, nil
	case user.Anonymous:
		return &authenticator.Response{
			User: &user.DefaultInfo{Name: name, Groups: []string{user.AllUnauthenticated}},
		}, true, nil
	}
	return &authenticator.Response{User: &user.DefaultInfo{Name: name, Groups: []string{user.AllAuthenticated}}}, true, nil
}

// notMallory allows every user except mallory.
type notMallory struct{}

func (notMallory) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	switch {
	case a.GetUser().GetName() == "mallory":
		return authorizer.DecisionNoOpinion, "not you", nil
	case a.GetPath() == "/broken":
		return authorizer.DecisionNoOpinion, "", errors.New("policy unreadable")
	}
	return authorizer.DecisionAllow, "", nil
}

type fixture struct {
	registry *prometheus.Registry
	drain    *request.Drain
	server   *httptest.Server
	serving  sync.WaitGroup // requests within the chain
}

// start serves a handler behind the chain with TLS, over HTTP/2 unless http1 is set.
func start(t testing.TB, http1 bool, change func(*Options), handler http.HandlerFunc) *fixture {
	t.Helper()
	f := newFixture(t, change, handler)
	f.server.EnableHTTP2 = !http1
	f.server.StartTLS()
	return f
}

// newFixture returns a fixture whose server has not started.
func newFixture(t testing.TB, change func(*Options), handler http.HandlerFunc) *fixture {
	t.Helper()
	f := &fixture{registry: prometheus.NewRegistry(), drain: &request.Drain{}}
	chain := Chain(f.options(change), handler)
	f.server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.serving.Add(1)
		defer f.serving.Done()
		chain.ServeHTTP(w, r)
	}))
	t.Cleanup(f.server.Close)
	return f
}

func (f *fixture) options(change func(*Options)) Options {
	catalog := &resource.CatalogHolder{}
	catalog.Publish(resource.NewCatalog(&resource.Definition{
		Plural: "pods", Namespaced: true,
		Versions: []*resource.Version{{Name: "v1", Endpoints: map[string]*resource.Endpoint{"": {}, "log": {}}}},
	}))
	options := Options{
		Clock: clock.RealClock{}, Logger: logr.Discard(), Metrics: NewMetrics(f.registry, catalog),
		Catalog: catalog, Drain: f.drain,
		Authenticator: byName{}, Authorizer: notMallory{}, ConstrainedImpersonation: true,
		RequestTimeout: time.Minute,
	}
	if change != nil {
		change(&options)
	}
	return options
}

func (f *fixture) newRequest(t testing.TB, method, target, who string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, f.server.URL+target, nil)
	if err != nil {
		t.Fatal(err)
	}
	if who != "" {
		r.Header.Set("Authorization", who)
	}
	return r
}

// get sends a request and returns the whole response.
func (f *fixture) get(t testing.TB, method, target, who string) (*http.Response, string) {
	t.Helper()
	response, err := f.server.Client().Do(f.newRequest(t, method, target, who))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatalf("%s: %v", target, err)
	}
	return response, string(body)
}

func expect(t *testing.T, response *http.Response, body string, code int, wantBody string) {
	t.Helper()
	if response.StatusCode != code || body != wantBody {
		t.Errorf("got %d %q\nwant %d %q", response.StatusCode, body, code, wantBody)
	}
}

// final is value after all requests have left the chain.
func (f *fixture) final(t testing.TB, name string, labels ...string) float64 {
	t.Helper()
	f.serving.Wait()
	return f.value(t, name, labels...)
}

// value returns the sum of a metric's series whose labels contain all those given, as `name="value"`.
func (f *fixture) value(t testing.TB, name string, labels ...string) float64 {
	t.Helper()
	families, err := f.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			text := fmt.Sprint(metric.GetLabel())
			matches := family.GetName() == name
			for _, label := range labels {
				key, value, _ := strings.Cut(label, "=")
				matches = matches && regexp.MustCompile(`name:"`+key+`"\s+value:`+regexp.QuoteMeta(value)).MatchString(text)
			}
			if matches {
				sum += metric.GetCounter().GetValue() + metric.GetGauge().GetValue() +
					float64(metric.GetHistogram().GetSampleCount())
			}
		}
	}
	return sum
}

func ok(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "fine") }

func TestOrdinaryRequest(t *testing.T) {
	f := start(t, false, func(o *Options) {
		o.StrictTransportSecurity = []string{"max-age=31536000", "includeSubDomains"}
	},
		func(w http.ResponseWriter, r *http.Request) {
			who, _ := upstream.UserFrom(r.Context())
			info, _ := upstream.RequestInfoFrom(r.Context())
			warning.AddWarning(r.Context(), "", "careful")
			for _, header := range []string{"Authorization", "X-Remote-User", "X-Remote-Extra-A"} {
				if r.Header.Get(header) != "" {
					t.Errorf("header %s was not removed", header)
				}
			}
			_, _ = fmt.Fprintln(w, who.GetName(), info.Verb, info.Resource, info.Namespace)
		})
	r := f.newRequest(t, "GET", "/api/v1/namespaces/a/pods", "alice")
	r.Header.Set("Audit-ID", "mine")
	r.Header.Set("X-Remote-User", "root")
	r.Header.Set("X-Remote-Extra-A", "b")
	response, err := f.server.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, _ := io.ReadAll(response.Body)
	expect(t, response, string(body), 200, "alice list pods a\n")
	for header, want := range map[string]string{
		"Audit-Id": "mine", "Cache-Control": "no-cache, private", "Warning": `299 - "careful"`,
		"Strict-Transport-Security": "max-age=31536000; includeSubDomains",
	} {
		if got := response.Header.Get(header); got != want {
			t.Errorf("header %s is %q, want %q", header, got, want)
		}
	}
	if response, _ := f.get(t, "GET", "/api/v1/pods", "alice"); len(response.Header.Get("Audit-Id")) != 36 {
		t.Errorf("audit id %q", response.Header.Get("Audit-Id"))
	}
	for _, name := range []string{
		"apiserver_request_total", "apiserver_request_duration_seconds", "apiserver_request_sli_duration_seconds",
		"apiserver_response_sizes",
	} {
		for _, scope := range []string{"namespace", "cluster"} {
			if got := f.final(
				t, name, `verb="LIST"`, `resource="pods"`, `version="v1"`, `scope="`+scope+`"`, `component="apiserver"`,
			); got != 1 {
				t.Errorf("%s of scope %s is %v", name, scope, got)
			}
		}
	}
	if got := f.final(t, "authentication_attempts", `result="success"`); got != 2 {
		t.Errorf("authentication_attempts is %v", got)
	}
	if got := f.final(t, "apiserver_current_inflight_requests", `request_kind="readOnly"`); got != 0 {
		t.Errorf("in flight is %v after it was read", got)
	}
}

func TestUnknownResourcesAreNotMeasured(t *testing.T) {
	f := start(t, false, nil, ok)
	for _, path := range []string{"/api/v1/nothings", "/api/v1/namespaces/a/pods/b/nothing", "/random"} {
		f.get(t, "GET", path, "alice")
	}
	if got := f.final(t, "apiserver_request_total"); got != 0 {
		t.Errorf("%v requests measured", got)
	}
}

func TestUnauthorized(t *testing.T) {
	f := start(t, false, nil, ok)
	want := `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"Unauthorized","reason":"Unauthorized","code":401}` + "\n"
	for _, who := range []string{"", "bad"} {
		response, body := f.get(t, "GET", "/api/v1/pods", who)
		expect(t, response, body, 401, want)
	}
	if success, failure, broken := f.final(
		t, "authentication_attempts", `result="success"`,
	), f.value(t, "authentication_attempts", `result="failure"`), f.value(t, "authentication_attempts",
		`result="error"`); success != 0 || failure != 1 || broken != 1 {
		t.Errorf("attempts: %v, %v, %v", success, failure, broken)
	}
}

// TestAnonymousHTTP2ConnectionsClose checks that an HTTP/2 connection of an anonymous client serves only one request.
func TestAnonymousHTTP2ConnectionsClose(t *testing.T) {
	f := start(t, false, nil, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.RemoteAddr) })
	for who, same := range map[string]bool{"alice": true, user.Anonymous: false} {
		f.server.Client().CloseIdleConnections()
		_, first := f.get(t, "GET", "/x", who)
		_, second := f.get(t, "GET", "/x", who)
		if (first == second) != same {
			t.Errorf("%s: connections %s and %s", who, first, second)
		}
	}
}

func TestGoaway(t *testing.T) {
	f := start(t, false, func(o *Options) { o.GoawayChance = 1 }, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.RemoteAddr)
	})
	_, first := f.get(t, "GET", "/x", "alice")
	_, second := f.get(t, "GET", "/x", "alice")
	if first == second {
		t.Error("the connection was kept")
	}
}

// TestMoveClients checks that a connection with a watch stays open for the watch, while a new request gets a new
// connection.
func TestMoveClients(t *testing.T) {
	end := make(chan struct{})
	f := start(t, false, nil, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.RemoteAddr+"\n")
		if r.URL.Query().Has("watch") {
			w.(http.Flusher).Flush()
			<-end
			_, _ = io.WriteString(w, "the end")
		}
	})
	f.drain.MoveClients()
	watch, err := f.server.Client().Do(f.newRequest(t, "GET", "/api/v1/pods?watch=1", "alice"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = watch.Body.Close() }()
	connection := make([]byte, 100)
	n, err := watch.Body.Read(connection)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, next := f.get(t, "GET", "/x", "alice"); next == string(connection[:n]) {
			t.Errorf("a request used the connection %s again", next)
		} else {
			n = copy(connection, next)
		}
	}
	close(end)
	if rest, err := io.ReadAll(watch.Body); err != nil || string(rest) != "the end" {
		t.Errorf("the watch got %q, %v, want its last event", rest, err)
	}
}

func TestForbidden(t *testing.T) {
	f := start(t, false, nil, ok)
	response, body := f.get(t, "DELETE", "/api/v1/namespaces/a/pods/b", "mallory")
	expect(t, response, body, 403,
		`{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"pods \"b\" is forbidden: User \"mallory\" cannot delete resource \"pods\" in API group \"\" in the namespace \"a\": not you","reason":"Forbidden","details":{"name":"b","kind":"pods"},"code":403}`+"\n")
	if response.Header.Get("X-Content-Type-Options") != "nosniff" {
		t.Error("nosniff is missing")
	}
	response, body = f.get(t, "GET", "/metrics", "mallory")
	expect(t, response, body, 403,
		`{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"forbidden: User \"mallory\" cannot get path \"/metrics\": not you","reason":"Forbidden","details":{},"code":403}`+"\n")
	response, body = f.get(t, "GET", "/broken", "alice")
	expect(t, response, body, 500, "Internal Server Error: \"/broken\": policy unreadable\n")
}

func TestTooManyRequests(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	f := start(t, false, func(o *Options) { o.MaxRequestsInFlight, o.MaxMutatingRequestsInFlight = 1, 1 },
		func(_ http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Has("wait") {
				entered <- struct{}{}
				<-release
			}
		})
	done := make(chan int)
	go func() {
		response, _ := f.get(t, "GET", "/api/v1/pods?wait", "alice")
		done <- response.StatusCode
	}()
	<-entered
	response, body := f.get(t, "GET", "/api/v1/pods", "alice")
	expect(t, response, body, 429, "Too many requests, please try again later.\n")
	if response.Header.Get("Retry-After") != "1" {
		t.Errorf("Retry-After is %q", response.Header.Get("Retry-After"))
	}
	for _, exempt := range []struct{ method, target, who string }{
		{"GET", "/api/v1/pods", "root"}, {"GET", "/api/v1/namespaces/a/pods/b/log", "alice"}, {
			"POST", "/api/v1/namespaces/a/pods", "alice",
		},
	} {
		if response, _ := f.get(t, exempt.method, exempt.target, exempt.who); response.StatusCode != 200 {
			t.Errorf("%+v: %d", exempt, response.StatusCode)
		}
	}
	close(release)
	if code := <-done; code != 200 {
		t.Errorf("the first got %d", code)
	}
	if response, _ := f.get(t, "GET", "/api/v1/pods", "alice"); response.StatusCode != 200 {
		t.Errorf("afterwards %d", response.StatusCode)
	}
	if dropped, ended := f.final(t, "apiserver_request_total", `code="429"`), f.value(
		t, "apiserver_request_terminations_total", `code="429"`, `resource="pods"`,
	); dropped != 1 || ended != 1 {
		t.Errorf("counted %v dropped, %v terminated", dropped, ended)
	}
}

func TestBadRequestLine(t *testing.T) {
	f := start(t, false, nil, ok)
	response, body := f.get(t, "GET", "/api/v1/watch", "alice")
	expect(t, response, body, 500, "Internal Server Error: \"/api/v1/watch\": failed to create RequestInfo: unable to "+
		"determine kind and namespace from url, /api/v1/watch\n")
}

func TestPanics(t *testing.T) {
	f := start(t, false, nil, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/late" {
			_, _ = io.WriteString(w, "a beginning")
			w.(http.Flusher).Flush()
		}
		if r.URL.Path == "/abort" {
			panic(http.ErrAbortHandler)
		}
		panic("oops")
	})
	response, body := f.get(t, "GET", "/early", "alice")
	expect(t, response, body, 500, "This request caused apiserver to panic. Look in the logs for details.\n")
	if response, err := f.server.Client().Do(f.newRequest(t, "GET", "/abort", "alice")); err == nil {
		_ = response.Body.Close()
		t.Error("an aborted response arrived")
	}
	response, err := f.server.Client().Do(f.newRequest(t, "GET", "/late", "alice"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	if body, err := io.ReadAll(response.Body); err == nil {
		t.Errorf("an aborted response looks complete: %q", body)
	}
	if got := f.final(t, "apiserver_request_aborts_total", `verb="GET"`); got != 1 {
		t.Errorf("%v aborts", got)
	}
}

func TestCORS(t *testing.T) {
	origins, err := CompileOrigins([]string{`^https://good\.example$`})
	if err != nil {
		t.Fatal(err)
	}
	f := start(t, false, func(o *Options) { o.CORSAllowedOrigins = origins }, ok)
	for origin, want := range map[string]int{"https://good.example": 204, "https://bad.example": 401} {
		r := f.newRequest(t, "OPTIONS", "/api/v1/pods", "")
		r.Header.Set("Origin", origin)
		response, err := f.server.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != want || (response.Header.Get("Access-Control-Allow-Origin") == origin) != (want == 204) {
			t.Errorf("%s: %d %v", origin, response.StatusCode, response.Header)
		}
	}
	if _, err := CompileOrigins([]string{"("}); err == nil {
		t.Error("a bad pattern was accepted")
	}
}
