package filters

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"

	"quorate.dev/apiserver/metrics"
	"quorate.dev/apiserver/request"
	"quorate.dev/apiserver/resource"
)

// refusal is a way to end a request before its handler responds, or a handler that does not respond.
type refusal struct {
	user         string
	impersonates bool
	query        string
	change       func(*Options)
	prepare      func(*fixture)
	handle       http.HandlerFunc
}

var refusals = map[string]refusal{
	"timed out":       {user: "alice", query: "timeout=1ns"},
	"bad timeout":     {user: "alice", query: "timeout=soon"},
	"unauthenticated": {},
	"bad credentials": {user: "bad"},
	"forbidden":       {user: "mallory"},
	"impersonation":   {user: "mallory", impersonates: true},
	"not found":       {user: "alice", handle: http.NotFound},
	"aborted": {user: "alice", handle: func(http.ResponseWriter, *http.Request) {
		panic(http.ErrAbortHandler)
	}},
	"panic": {user: "alice", handle: func(http.ResponseWriter, *http.Request) { panic("oops") }},
	"too many": {user: "alice", change: func(o *Options) {
		o.MaxRequestsInFlight, o.MaxMutatingRequestsInFlight = 1, 1
	}},
	"draining":      {user: "alice", prepare: func(f *fixture) { f.drain.Requests.Close(); f.drain.Watches.Close() }},
	"shutting down": {user: "alice", prepare: func(f *fixture) { f.drain.Refuse() }},
}

// randomTarget returns a unique method and path similar to a served one.
func randomTarget(r *rand.Rand, number int, padding string) (method, path string) {
	word := func(known ...string) string {
		if i := r.IntN(2 * len(known)); i < len(known) {
			return known[i]
		}
		return fmt.Sprintf("w%d-%d%s", number, r.IntN(1000), padding)
	}
	method = word("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "get", "LIST", "WATCH")
	switch r.IntN(6) {
	case 0:
		path = "/" + word("healthz", "version", "metrics", "apis")
	case 1:
		path = "/" + word("api", "apis") + "/" + word("v1", "apps")
	case 2:
		path = "/apis/" + word("apps") + "/" + word("v1") + "/" + word("pods")
	case 3:
		path = "/api/v1/namespaces/" + word("a") + "/pods/" + word("b") + "/" + word("log", "exec", "status")
	case 4:
		path = "/api/" + word("v1") + "/" + word("watch") + "/" + word("pods")
	default:
		path = "/api/" + word("v1") + "/namespaces/" + word("a") + "/" + word("pods", "services")
	}
	return method, path
}

// TestRefusedRequestsMakeNoSeries checks, for each reason of a rejection, that names in requests become labels only if
// they are served, and that no request stays in memory.
func TestRefusedRequestsMakeNoSeries(t *testing.T) {
	for name, refusal := range refusals {
		t.Run(name, func(t *testing.T) {
			f := &fixture{registry: prometheus.NewRegistry(), drain: &request.Drain{}}
			chain := refusal.start(t, f)
			random := rand.New(rand.NewPCG(1, 2))
			const large, requests = 15, 300
			padding := strings.Repeat("x", 200_000)
			before := heap()
			for number := range large {
				refusal.send(chain, random, number, padding)
			}
			if grown := growth(before, 1<<20); grown > 1<<20 {
				t.Errorf("%d requests with names of %d bytes left %d bytes in memory", large, len(padding), grown)
			}
			for number := range requests {
				refusal.send(chain, random, large+number, "")
			}
			const most = 150 // of one served resource with its subresources, and of what is not served
			if series := countSeries(t, f.registry); series > most {
				t.Errorf("%d series after %d requests", series, requests+large)
			}
			expectKnownLabels(t, f.registry)
		})
	}
}

// start returns a chain that rejects all requests, except long-running ones if they are exempt.
func (c refusal) start(t *testing.T, f *fixture) http.Handler {
	release, entered := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(release) })
	chain := Chain(f.options(c.change), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("Hold") != "":
			entered <- struct{}{}
			<-release
		case c.handle != nil:
			c.handle(w, r)
		}
	}))
	if c.change != nil { // one request of each kind holds the only slot
		for _, method := range []string{"GET", "POST"} {
			r := httptest.NewRequest(method, "/api/v1/namespaces/a/pods", nil)
			r.Header = http.Header{"Authorization": {c.user}, "Hold": {"yes"}}
			go chain.ServeHTTP(discard{header: http.Header{}}, r)
			<-entered
		}
	}
	if c.prepare != nil {
		c.prepare(f)
	}
	return chain
}

func (c refusal) send(chain http.Handler, random *rand.Rand, number int, padding string) {
	method, path := randomTarget(random, number, padding)
	option := []string{"", "watch=1&", "dryRun=All&", fmt.Sprintf("dryRun=%d&watch=%d&", number, number)}[number%4]
	r := httptest.NewRequest(method, path+"?"+option+c.query, nil)
	r.Header.Set("Authorization", c.user)
	if c.impersonates {
		r.Header.Set("Impersonate-User", fmt.Sprint("user", number))
	}
	defer func() { _ = recover() }() // as net/http does
	chain.ServeHTTP(discard{header: http.Header{}}, r)
}

// TestSeriesDoNotKeepRequests checks that labels do not share memory with the URL of the first request.
func TestSeriesDoNotKeepRequests(t *testing.T) {
	f := &fixture{registry: prometheus.NewRegistry(), drain: &request.Drain{}}
	chain := Chain(f.options(nil), http.HandlerFunc(ok))
	padding := strings.Repeat("x", 1_000_000)
	before := heap()
	for _, method := range []string{"GET", "PUT", "PATCH", "DELETE", "POST"} {
		for _, option := range []string{"", "dryRun=All&", "dryRun=x&"} {
			r := httptest.NewRequest(method, "/api/v1/namespaces/a/pods/b?"+option+padding, nil)
			r.Header.Set("Authorization", "alice")
			chain.ServeHTTP(discard{header: http.Header{}}, r)
		}
	}
	if series := f.value(t, "apiserver_request_total"); series != 15 {
		t.Fatalf("%v requests were measured", series)
	}
	if grown := growth(before, 2<<20); grown > 2<<20 {
		t.Errorf("15 requests of %d bytes left %d bytes in memory", len(padding), grown)
	}
	runtime.KeepAlive(chain)
}

// growth returns how many bytes the heap has grown since it had the given size. Goroutines that end and stopped timers
// release their requests after a while, so growth measures again until the result is at most enough.
func growth(since uint64, enough int64) (grown int64) {
	for range 50 {
		if grown = int64(heap()) - int64(since); grown <= enough {
			break
		}
		releaseTimers()
	}
	return grown
}

// releaseTimers makes the runtime forget stopped timers, and with them the contexts of requests that had a deadline.
// The runtime keeps stopped timers in the heap of each processor until they are a quarter of it.
func releaseTimers() {
	var group sync.WaitGroup
	for range 4 * runtime.GOMAXPROCS(0) {
		group.Go(func() {
			for range 1000 {
				time.AfterFunc(time.Hour, func() {}).Stop()
				runtime.Gosched()
			}
		})
	}
	group.Wait()
}

// heap returns the number of bytes in reachable objects of the heap.
func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

// countSeries counts the series of all families, a histogram as one.
func countSeries(t *testing.T, registry *prometheus.Registry) (count int) {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		count += len(family.GetMetric())
	}
	return count
}

// expectKnownLabels compares all labels that depend on requests with their closed sets of values.
func expectKnownLabels(t *testing.T, registry *prometheus.Registry) {
	t.Helper()
	known := map[string][]string{
		"verb": {"GET", "LIST", "WATCH", "POST", "PUT", "PATCH", "APPLY", "DELETE", "CONNECT", "other",
			"create", "update", "patch", "delete", "delete_collection"},
		"dry_run":     {"", "All", "invalid"},
		"group":       {""},
		"version":     {"", "v1"},
		"resource":    {"", "pods"},
		"subresource": {"", "log", "/healthz", "/livez", "/readyz"},
		"scope":       {"", "cluster", "namespace", "resource"},
		"component":   {"", component},
		"username":    {"other"},
		"code":        {"200", "404", "429", "504"},
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			for _, label := range metric.GetLabel() {
				values, chosen := known[label.GetName()]
				if chosen && !slices.Contains(values, label.GetValue()) {
					t.Fatalf("%s has label %s of %.40q", family.GetName(), label.GetName(), label.GetValue())
				}
			}
		}
	}
}

// TestSeriesOfForgottenResources checks that the series of a resource that is no longer served are dropped, and created
// again when the resource is served again.
func TestSeriesOfForgottenResources(t *testing.T) {
	registry := metrics.NewRegistry(version.Info{})
	m := NewMetrics(registry, &resource.CatalogHolder{})
	gone := seriesKey{
		verb: "LIST", group: "a.test", version: "v1", resource: "things", scope: "cluster", component: component,
	}
	kept := gone
	kept.resource = "kinds"
	m.addSeries(gone)
	m.addSeries(kept)
	registry.Forget(schema.GroupResource{Group: "a.test", Resource: "things"})
	if m.series(gone) != nil || m.series(kept) == nil {
		t.Error("not only the series of one resource were forgotten")
	}
	if left := testutil.CollectAndCount(m.durations); left != 1 {
		t.Errorf("%d histograms are left, want 1", left)
	}
	m.addSeries(gone)
	if again := testutil.CollectAndCount(m.durations); again != 2 {
		t.Errorf("%d histograms after the resource is served again, want 2", again)
	}
}
