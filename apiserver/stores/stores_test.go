package stores_test

import (
	"context"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"quorate.dev/apiserver/builtin/builtintest"
	"quorate.dev/apiserver/config"
	"quorate.dev/apiserver/etcd"
	"quorate.dev/apiserver/etcd/etcdtest"
	"quorate.dev/apiserver/metrics"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/serving"
	"quorate.dev/apiserver/startup"
	"quorate.dev/apiserver/stores"
	"quorate.dev/apiserver/watchcache"
	"quorate.dev/panics"
)

// replica is a replica's stores with its own metrics.
type replica struct {
	*stores.Stores
	metrics *metrics.Registry
}

// newFlags returns the flags of a replica with a new embedded member.
func newFlags(t *testing.T) *config.Config {
	t.Helper()
	c := config.Default()
	c.Member = etcdtest.Flags(t)
	return c
}

func open(t *testing.T, c *config.Config, clock clock.WithTicker, dial ...grpc.DialOption) (*replica, error) {
	t.Helper()
	r := &replica{metrics: metrics.NewRegistry(version.Info{})}
	var err error
	r.Stores, err = stores.Open(t.Context(), stores.Options{
		Config: c, Catalog: &resource.CatalogHolder{}, Clock: clock, Logger: logr.Discard(), Metrics: r.metrics,
		Dial: dial,
	})
	return r, err
}

// mustOpen returns stores that are closed when the test ends.
func mustOpen(t *testing.T, c *config.Config, clock clock.WithTicker, dial ...grpc.DialOption) *replica {
	t.Helper()
	r := builtintest.Must[*replica](t)(open(t, c, clock, dial...))
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// start runs the hooks until the test ends, and waits until the etcds can be read.
func (r *replica) start(t *testing.T) {
	t.Helper()
	hooks := builtintest.Must[*startup.Hooks](t)(startup.New(r.Hooks(),
		panics.NewReporter(r.metrics, clock.RealClock{}, logr.Discard())))
	ctx, cancel := context.WithCancel(t.Context())
	var work errgroup.Group
	hooks.Start(ctx, ctx, &work)
	t.Cleanup(func() { cancel(); _ = work.Wait() })
	<-hooks.Done(stores.HookReadable)
}

// value returns the value of a metric without labels, or -1.
func (r *replica) value(t *testing.T, name string) float64 {
	t.Helper()
	families, err := r.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == name {
			return family.GetMetric()[0].GetGauge().GetValue()
		}
	}
	return -1
}

// checks returns the health checks of an endpoint and their results, as ?verbose prints them.
func (r *replica) checks(t *testing.T, endpoint string) []string {
	t.Helper()
	health := serving.NewHealth(0, clock.RealClock{}, logr.Discard())
	r.AddChecks(health)
	w := httptest.NewRecorder()
	health.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), "GET", "/"+endpoint+"?verbose", nil))
	var lines []string
	for line := range strings.Lines(w.Body.String()) {
		if strings.Contains(line, "etcd") {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

var (
	events = schema.GroupResource{Resource: "events"}
	leases = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}
)

// TestOverrides opens an embedded member, and another etcd for events and leases, which are overridden with the same
// servers in another order.
func TestOverrides(t *testing.T) {
	t.Parallel()
	c := newFlags(t)
	flags := etcdtest.Flags(t)
	etcdtest.Start(t, flags)
	other := builtintest.Must[clientv3.Config](t)(etcd.LocalConfig(t.Context(), flags.DataDirectory))
	servers := []string{"passthrough:one", "passthrough:two"} // the dialer connects both to the other etcd
	c.Etcd.ServersOverrides = []string{
		"/events#" + strings.Join(servers, ";"), "coordination.k8s.io/leases#" + servers[1] + ";" + servers[0],
	}
	c.Etcd.WatchCacheSizes = []string{"events#0", "pods#100"}
	r := mustOpen(t, c, clock.RealClock{}, other.DialOptions...)
	r.start(t)
	overrides := r.Overrides()
	if len(overrides) != 2 || overrides[events] == nil || overrides[events] != overrides[leases] {
		t.Fatalf("got the overrides %v, want one etcd for events and leases", overrides)
	}
	if _, err := overrides[events].Store.Create(t.Context(), "events/a/b", []byte("event"), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Default.Store.Create(t.Context(), "pods/a/b", []byte("pod"), 0); err != nil {
		t.Fatal(err)
	}
	for resource, want := range map[string]string{"events": "event ", "pods": " pod", "services": " pod"} {
		l := r.LocationOf(resource)
		event, _ := l.Store.Get(t.Context(), "events/a/b")
		pod, _ := l.Store.Get(t.Context(), "pods/a/b")
		if got := string(event.Data) + " " + string(pod.Data); got != want {
			t.Errorf("the etcd of %s has %q, want %q", resource, got, want)
		}
	}
	if uncached := r.Uncached(); uncached.All || len(uncached.Resources) != 1 || !uncached.Resources[events] {
		t.Errorf("without watch caches: %+v, want events", uncached)
	}
	for endpoint, want := range map[string][]string{
		"livez":  {"[+]etcd ok", "[+]etcd-override-0 ok"},
		"readyz": {"[+]etcd ok", "[+]etcd-readiness ok", "[+]etcd-override-0 ok", "[+]etcd-override-readiness-0 ok"},
	} {
		if got := r.checks(t, endpoint); !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", endpoint, got, want)
		}
	}
	checks := r.EndpointChecks()
	if len(checks) != 1+len(servers) {
		t.Errorf("%d endpoints are checked, want that of the member and %d of the other etcd", len(checks), len(servers))
	}
	for i, check := range checks[:2] {
		if err := check(t.Context()); err != nil {
			t.Errorf("endpoint %d: %v", i, err)
		}
	}
	if err := r.CheckSpace(t.Context()); err != nil {
		t.Errorf("empty databases have no space: %v", err)
	}
}

// TestLocationOfAllResources overrides all resources of the core group except pods.
func TestLocationOfAllResources(t *testing.T) {
	t.Parallel()
	c := config.Default()
	c.Etcd.Servers = []string{"http://127.0.0.1:1"}
	c.Etcd.ServersOverrides = []string{"/*#http://127.0.0.1:2", "/pods#http://127.0.0.1:3", "apps/*#http://127.0.0.1:4"}
	r := mustOpen(t, c, clock.RealClock{})
	for resource, want := range map[string]string{"pods": "http://127.0.0.1:3", "services": "http://127.0.0.1:2"} {
		if got := r.LocationOf(resource).Client.Endpoints(); len(got) != 1 || got[0] != want {
			t.Errorf("%s are in %v, want %s", resource, got, want)
		}
	}
	if got := r.Default.Client.Endpoints()[0]; got != c.Etcd.Servers[0] {
		t.Errorf("the default etcd is %s", got)
	}
}

// TestClosedStores checks that the health checks of an etcd fail when it has stopped.
func TestClosedStores(t *testing.T) {
	t.Parallel()
	r := builtintest.Must[*replica](t)(open(t, newFlags(t), clock.RealClock{}))
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	want := []string{"[-]etcd failed: reason withheld", "[-]etcd-readiness failed: reason withheld", "readyz check failed"}
	got := r.checks(t, "readyz")
	if len(got) < 2 || !slices.Equal(got[:2], want[:2]) {
		t.Errorf("got %q, want %q", got, want)
	}
	if err := r.EndpointChecks()[0](t.Context()); err == nil {
		t.Error("the endpoint of the stopped member is healthy")
	}
}

// TestOpenFails opens stores with invalid files. The embedded member, if it has started, stops: its directory can be
// used again.
func TestOpenFails(t *testing.T) {
	t.Parallel()
	c := newFlags(t)
	missing := filepath.Join(t.TempDir(), "missing")
	for name, test := range map[string]struct {
		change func(*config.Etcd)
		want   string
	}{
		"encryption":        {func(e *config.Etcd) { e.EncryptionConfig = missing }, missing},
		"invalid overrides": {func(e *config.Etcd) { e.ServersOverrides = []string{"events"} }, "--etcd-servers-overrides"},
		"authority of an override": {func(e *config.Etcd) {
			e.ServersOverrides, e.CAFile = []string{"/events#https://127.0.0.1:1"}, missing
		}, "--etcd-servers-overrides: read --etcd-cafile, --etcd-certfile and --etcd-keyfile"},
	} {
		changed := *c
		test.change(&changed.Etcd)
		if _, err := open(t, &changed, clock.RealClock{}); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got the error %v, want %q", name, err, test.want)
		}
	}
	external := config.Default()
	external.Etcd.Servers, external.Etcd.CAFile = []string{"https://127.0.0.1:1"}, missing
	if _, err := open(t, external, clock.RealClock{}); err == nil || !strings.Contains(err.Error(), "--etcd-cafile") {
		t.Errorf("authority of an external etcd: got the error %v", err)
	}
	mustOpen(t, c, clock.RealClock{}).start(t)
}

// TestEncryptionReload has the hook that reloads the keys only if a flag asks for it.
func TestEncryptionReload(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "encryption.yaml")
	if err := os.WriteFile(file, []byte("apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\n"+
		"resources: [{resources: [secrets], providers: [{identity: {}}]}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	const hook = "start-encryption-provider-config-automatic-reload"
	for _, reload := range []bool{false, true} {
		c := config.Default()
		c.Etcd.Servers = []string{"http://127.0.0.1:1"}
		c.Etcd.EncryptionConfig, c.Etcd.ReloadEncryptionConfig = file, reload
		hooks := mustOpen(t, c, clock.RealClock{}).Hooks()
		if got := slices.ContainsFunc(hooks, func(h startup.Hook) bool { return h.Name == hook }); got != reload {
			t.Errorf("reload %v: the hook exists: %v", reload, got)
		}
	}
}

// TestOrphansAreCounted counts custom resources without a definition, at the start and every hour.
func TestOrphansAreCounted(t *testing.T) {
	t.Parallel()
	fake := clocktesting.NewFakeClock(time.Now())
	r := mustOpen(t, newFlags(t), fake)
	i := slices.IndexFunc(r.Hooks(), func(h startup.Hook) bool { return h.Name == "orphans" })
	put := func(name string) {
		t.Helper()
		path := "/registry/example.com/widgets/a/" + name
		if _, err := r.Default.Client.Put(t.Context(), path, "{}"); err != nil {
			t.Fatal(err)
		}
	}
	put("one")
	builtintest.Background(t, func(ctx context.Context) { _ = r.Hooks()[i].Run(ctx, func() {}) })
	orphans := func(want float64) func() bool {
		return func() bool { return r.value(t, "quorate_orphaned_objects") == want }
	}
	builtintest.Eventually(t, "one orphan is counted", orphans(1))
	put("two")
	builtintest.Eventually(t, "the search waits", fake.HasWaiters)
	fake.Step(time.Hour)
	builtintest.Eventually(t, "two orphans are counted", orphans(2))
}

// TestAwaitInitialized waits for a watch cache whose etcd is not watched: until the timeout, or the end of the context.
func TestAwaitInitialized(t *testing.T) {
	t.Parallel()
	fake := clocktesting.NewFakeClock(time.Now())
	c := newFlags(t)
	r := mustOpen(t, c, fake)
	await := func(ctx context.Context) chan error {
		result := make(chan error, 1)
		go func() { result <- r.AwaitInitialized(ctx, func() {}) }()
		builtintest.Eventually(t, "AwaitInitialized waits", fake.HasWaiters)
		return result
	}
	result := await(t.Context())
	fake.Step(c.Etcd.InitializationTimeout - time.Second)
	select {
	case err := <-result:
		t.Errorf("AwaitInitialized returned before the timeout: %v", err)
	default:
	}
	fake.Step(time.Second)
	if err := <-result; err != nil {
		t.Errorf("after the timeout: got the error %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	result = await(ctx)
	cancel()
	if err := <-result; err != nil {
		t.Errorf("after the end of the context: got the error %v", err)
	}
	cache := r.Default.Caches.For("pods", func() (watchcache.Extract, bool) { return watchcache.Extract{}, true })
	r.start(t)
	builtintest.Must[*watchcache.Snapshot](t)(cache.Latest(t.Context()))
	if err := r.AwaitInitialized(t.Context(), func() {}); err != nil || !r.Default.Caches.Initialized() {
		t.Errorf("with initialized caches: got the error %v", err)
	}
}

// TestWatchOfAHealthyMember ends the context of Watch, which must not stop the replica then.
func TestWatchOfAHealthyMember(t *testing.T) {
	t.Parallel()
	r := mustOpen(t, newFlags(t), clock.RealClock{})
	ctx, cancel := context.WithCancel(t.Context())
	failed, result := make(chan struct{}), make(chan error, 1)
	go func() { result <- r.Watch(ctx, failed) }()
	cancel()
	if err := <-result; err != nil {
		t.Errorf("got the error %v", err)
	}
	select {
	case <-failed:
		t.Error("the member has failed")
	default:
	}
}
