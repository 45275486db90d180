package apiserver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/util/cert"
	featuregatetesting "k8s.io/component-base/featuregate/testing"

	"quorate.dev/apiserver/admission"
	"quorate.dev/apiserver/config"
	"quorate.dev/apiserver/controllers"
	"quorate.dev/apiserver/etcd/etcdtest"
	"quorate.dev/apiserver/startup"
	"quorate.dev/test/upstream"
	"quorate.dev/writelimit"
)

// shortFault is the time for which a fault lasts, in the time of the bubble. In the long form it lasts for an hour,
// unless writes are reverted: after the first minutes their rate is constant, and an hour of type checks of policies is
// expensive.
const shortFault = 10 * time.Minute

func (f fault) duration() time.Duration {
	if os.Getenv("QUORATE_HOSTILE") == "" || f.revert {
		return shortFault
	}
	return time.Hour
}

// limits are the permitted numbers of writes of an object during a fault.
type limits struct {
	// refused is the maximum number of attempts that fail: every ten seconds, and some more in the beginning.
	refused int
	// election is the maximum number of attempts of leader election, which tries to renew its lease every two seconds,
	// whether the last attempt has failed or not.
	election int
	// written is the maximum number of writes that succeed: the limit of package writelimit.
	written int
	// reverted is the maximum number of attempts if another client reverts each write. The event of the other write makes
	// the controller try again. Package writelimit refuses that for a second, in which there are some seven attempts with
	// a growing delay, which begins with five milliseconds.
	reverted int
}

func (f fault) limits() limits {
	count := func(first, perHour int) int { return first + int(f.duration()*time.Duration(perHour)/time.Hour) }
	written := count(ownWriteLimit.Burst, ownWriteLimit.PerHour)
	return limits{refused: count(60, 360), election: count(60, 1800), written: written, reverted: 8 * written}
}

// runaway is the number of attempts to write an object after which the controller is slowed down.
const runaway = 20_000

// elections are the names of the leases with which one replica is elected to run controllers.
var elections = []string{"quorate-controllers", "leader-election-controller"}

// loops are the writes of each hook that the fixture causes, as "writer verb resource" or as the prefix of a key in
// etcd. checkLoops requires that each hook is in loops, hourlyLoops, startWrites or readers.
var loops = map[string][]string{
	hookNamespaces: {"bootstrap CREATE namespaces"},
	"start-kube-apiserver-coordinated-leader-election-controller": {
		"leader-election UPDATE leases leader-election-controller", "leader-election CREATE leases",
	},
	"peer-endpoint-reconciler-controller":            {"peerserverleases"},
	"start-cluster-authentication-info-controller":   {"bootstrap CREATE configmaps"},
	"start-kube-apiserver-identity-lease-controller": {"identity-lease UPDATE leases"},
	"start-legacy-token-tracking-controller":         {"bootstrap CREATE configmaps"},
	"start-service-ip-repair-controllers":            {"service-ip-repair CREATE ipaddresses"},
	"service-events":                                 {"service-ip-events CREATE events"},
	hookFlowControl:                                  {"bootstrap CREATE flowschemas"},
	"priority-and-fairness-config-consumer":          {"apiserver UPDATE flowschemas/status"},
	hookKubernetesService:                            {"kubernetes-service CREATE endpoints", "masterleases"},
	"apiservices":                                    {"apiservice-registration CREATE apiservices"},
	"apiservice-status-remote-available-controller":  {"apiservice-availability UPDATE apiservices/status"},
	hookDefinitions: {
		"customresourcedefinitions UPDATE customresourcedefinitions/status",
	},
	"controllers": {"controllers UPDATE leases quorate-controllers"},
	"compaction":  {"compact_rev_key"},
}

// hourlyLoops are loops that write at most once per hour, which only the long form waits for.
var hourlyLoops = map[string][]string{
	"start-kube-apiserver-identity-lease-garbage-collector": {"bootstrap DELETE leases"},
}

// startWrites are the writes that hooks attempt when a server starts.
var startWrites = map[string][]string{
	hookClusterPolicy:   {"bootstrap CREATE clusterroles"},
	hookPriorityClasses: {"bootstrap CREATE priorityclasses"},
	hookServiceCIDR:     {"service-cidr CREATE servicecidrs"},
}

// upstreamWrites are the writes of the controllers of --controllers that the fixture causes.
var upstreamWrites = map[string][]string{
	controllers.Namespace:              {"controllers DELETE configmaps"},
	controllers.GarbageCollector:       {"controllers DELETE pods"},
	controllers.ServiceAccount:         {"controllers CREATE serviceaccounts"},
	controllers.ResourceQuota:          {"controllers UPDATE resourcequotas/status"},
	controllers.ClusterRoleAggregation: {"controllers UPDATE clusterroles"},
	controllers.PolicyStatus:           {"controllers UPDATE validatingadmissionpolicies/status"},
}

// readers are the other hooks: they only read, wait for others, or are explained.
var readers = []string{
	hookStorage, "watch-cache", hookInformers, hookRBACInformers, hookServiceInformers, hookComplete,
	"storage-space", "orphans", "idle", "memory", "idle-memory", "auth-configuration", "debug-socket",
	"start-apiserver-admission-initializer", "start-apiextensions-controllers", "crd-informer-synced", "storage-readiness",
	"priority-and-fairness-filter", "storage-object-count-tracker-hook",
	"start-kube-aggregator-informers", "apiservice-status-local-available-controller",
	"apiservice-registration-controller", "apiservice-discovery-controller", hookAutoregistration,
	"apiservice-openapi-controller", "apiservice-openapiv3-controller",
	hookRBAC,           // creates roles as hookClusterPolicy creates cluster roles, when that hook has succeeded
	"storage-handover", // repeats writes of clients and controllers; its barrier has a growing delay (raiseBarrierWhile)
}

// recorder is an admission plugin that counts the writes of the server's controllers, and makes them fail.
type recorder struct {
	mu sync.Mutex
	fault
	attempts map[string]int // by "writer verb resource", or by the kind of data in etcd
	objects  map[string]int // attempts by "writer verb resource name"
	written  map[string]int // by "writer key"
}

// Admit implements admission.Mutator.
func (r *recorder) Admit(ctx context.Context, a *admission.Attributes) error {
	writer, name := writelimit.Writer(ctx), a.Name
	if writer == "" {
		return nil
	}
	if accessor, err := meta.Accessor(a.Object); err == nil && name == "" {
		name = accessor.GetName()
	}
	id := fmt.Sprintf("%s %s %s", writer, a.Operation, strings.TrimSuffix(a.Definition.Plural+"/"+a.Subresource, "/"))
	election := slices.Contains(elections, name)
	if election {
		id += " " + name
	}
	if a.Definition.Plural == "events" {
		name = "" // each has its own
	}
	if r.count(id, name) > runaway {
		<-time.After(time.Second) // the time of the bubble stands still while a loop works without a pause
	}
	// The quota plugin writes the usage in requests of clients.
	if election || id == "apiserver UPDATE resourcequotas/status" {
		return nil
	}
	return r.refusal(schema.GroupResource{Group: a.Definition.Group, Resource: a.Definition.Plural}, name)
}

// count counts an attempt, and returns the number of attempts of the same write.
func (r *recorder) count(id, name string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.attempts[id]++
	r.objects[id+" "+name]++
	return r.objects[id+" "+name]
}

// refusal returns the error of a write, nil if it is permitted.
func (r *recorder) refusal(gr schema.GroupResource, name string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.refuse == nil {
		return nil
	}
	return r.refuse(gr, name)
}

// Validate implements admission.Validator, for deletions.
func (r *recorder) Validate(ctx context.Context, a *admission.Attributes) error {
	if a.Operation == admission.Delete {
		return r.Admit(ctx, a)
	}
	return nil
}

func (r *recorder) plugin() admission.Plugin {
	return admission.Plugin{
		Operations: []admission.Operation{admission.Create, admission.Update, admission.Delete}, Mutator: r,
		Validator: r, Internal: true,
	}
}

// before is called before each write of etcd.
func (r *recorder) before(ctx context.Context, key string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if writelimit.Writer(ctx) == "" {
		r.attempts[prefixOf(key)]++
		r.objects[strings.TrimPrefix(key, "/registry/")]++
	}
	if r.full && !isElection(key) {
		return rpctypes.ErrNoSpace
	}
	return nil
}

func isElection(key string) bool {
	return slices.ContainsFunc(elections, func(name string) bool { return strings.HasSuffix(key, "/"+name) })
}

// prefixOf returns the kind of data of a key.
func prefixOf(key string) string {
	kind, _, _ := strings.Cut(strings.TrimPrefix(key, "/registry/"), "/")
	return kind
}

// after is called after each write of etcd, and reports whether another client reverts it.
func (r *recorder) after(ctx context.Context, key string) bool {
	writer := writelimit.Writer(ctx)
	if writer == "" {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.written[writer+" "+strings.TrimPrefix(key, "/registry/")]++
	return r.revert && !isElection(key)
}

// fault is what happens to the writes of the server's controllers.
type fault struct {
	name string
	// refuse, full and revert are the values of the fields of recorder with the same names.
	refuse       func(gr schema.GroupResource, name string) error
	full, revert bool
}

var faults = []fault{
	{name: "forbidden", refuse: func(gr schema.GroupResource, name string) error {
		return apierrors.NewForbidden(gr, name, errors.New("a policy refuses it"))
	}},
	{name: "conflict", refuse: func(gr schema.GroupResource, name string) error {
		return apierrors.NewConflict(gr, name, errors.New("the object has been modified"))
	}},
	{
		name: "timeout", refuse: func(gr schema.GroupResource, _ string) error {
			return apierrors.NewServerTimeout(gr, "write", 0)
		},
	},
	{name: "full database", full: true},
	{name: "reverted", revert: true},
}

// set begins a fault and forgets all writes.
func (r *recorder) set(f fault) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fault, r.attempts, r.objects, r.written = f, map[string]int{}, map[string]int{}, map[string]int{}
}

// check fails if a write was attempted, or an object was written, too often.
func (r *recorder) check(t *testing.T) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	limits := r.limits()
	for write, count := range r.objects {
		maximum := limits.refused
		switch {
		case slices.ContainsFunc(elections, func(name string) bool { return strings.HasSuffix(write, name) }):
			maximum = limits.election
		case r.revert:
			maximum = limits.reverted
		}
		if count > maximum {
			t.Errorf("%s: %s: %d attempts in %v, at most %d are permitted", r.name, write, count, r.duration(), maximum)
		}
	}
	for object, count := range r.written {
		if count > limits.written {
			t.Errorf("%s: %s: written %d times in %v, at most %d are permitted", r.name, object, count,
				r.duration(), limits.written)
		}
	}
}

// requireAttempts fails if one of the writes was not attempted: the fixture then shows nothing about its controller.
func (r *recorder) requireAttempts(t *testing.T, writes map[string][]string) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	for controller, all := range writes {
		for _, write := range all {
			if r.attempts[write] == 0 {
				t.Errorf("%s: no attempt of %s; attempted were %v", controller, write, slices.Sorted(maps.Keys(r.attempts)))
			}
		}
	}
}

// simulation is a server without listeners in a bubble.
type simulation struct {
	*Server
	// stop stops the server and returns its error.
	stop func() error
	// failed returns the error of a server that stops.
	failed func() error
}

func simulate(t *testing.T, c *config.Config, b *bubble, r *recorder) *simulation {
	t.Helper()
	s, err := load(t.Context(), c, logr.Discard(), discarded{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.openStores(t.Context(), b.client(t.Context())); err != nil {
		t.Fatal(err)
	}
	if err := s.compose(t.Context(), &admission.Chain{Plugins: []admission.Plugin{r.plugin()}}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	work, background := errgroup.WithContext(ctx)
	s.hooks.Start(background, background, work)
	return &simulation{s, sync.OnceValue(func() error {
		cancel()
		err := work.Wait()
		close(s.stopped)
		// Run ends the queue of the repairs, because the server stops before it starts them.
		s.mode.(*cluster).services.repairs.Addresses.Run(ctx, time.Hour)
		<-time.After(time.Minute) // until the last requests of controllers have timed out
		return err
	}), work.Wait}
}

// TestOwnWritesAreBounded runs a whole server while the writes of its controllers fail, or are reverted by another
// client, for a time each. Etcd is real; the clock is the clock of the synctest bubble.
func TestOwnWritesAreBounded(t *testing.T) {
	upstream.NeedsTime(t)
	if testing.Short() {
		t.Skip("takes minutes under the race detector")
	}
	c := simulated(t)
	b, r := newBubble(t, etcdtest.Client(t)), &recorder{}
	r.set(faults[0])
	b.before, b.after = r.before, func(ctx context.Context, key string, previous *clientv3.GetResponse) {
		if r.after(ctx, key) {
			b.restore(ctx, key, previous)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		testStart(t, c, b, r)
		r.set(fault{})
		s := simulate(t, c, b, r)
		defer func() {
			if err := s.stop(); err != nil {
				t.Error(err)
			}
		}()
		<-time.After(time.Minute)
		f := newFixture(t, s.Server, b)
		f.create("fixture.yaml")
		for _, fault := range faults {
			r.set(fault)
			switch fault.name {
			case "forbidden":
				f.disturb()
			case "timeout":
				f.disturbServices()
			}
			<-time.After(fault.duration())
			r.check(t)
			switch fault.name {
			case "forbidden":
				r.requireAttempts(t, upstreamWrites)
				r.requireAttempts(t, loops)
				if fault.duration() >= time.Hour {
					r.requireAttempts(t, hourlyLoops)
				}
			case "timeout":
				r.requireAttempts(t, map[string][]string{
					hookServiceCIDR:       {"service-cidr CREATE servicecidrs"},
					hookKubernetesService: {"kubernetes-service CREATE services"},
				})
			}
		}
	})
}

// testStart starts a server whose writes are refused. The server stops after some attempts.
func testStart(t *testing.T, c *config.Config, b *bubble, r *recorder) {
	s := simulate(t, c, b, r)
	defer func() { _ = s.stop() }() // failed returns the same error
	checkLoops(t, s.hooks.Sequence())
	if err := s.failed(); err == nil || time.Now().After(bubbleStart.Add(time.Hour)) {
		t.Errorf("got %v after %v, want an error of the start", err, time.Since(bubbleStart))
	}
	r.requireAttempts(t, startWrites)
	r.check(t)
}

// bubbleStart is the time at which a bubble begins.
var bubbleStart = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// checkLoops fails if a hook is not in the lists above.
func checkLoops(t *testing.T, hooks startup.Sequence) {
	t.Helper()
	for _, hook := range hooks {
		_, loops := loops[hook.Name]
		_, hourly := hourlyLoops[hook.Name]
		_, starts := startWrites[hook.Name]
		if !loops && !hourly && !starts && !slices.Contains(readers, hook.Name) {
			t.Errorf("add the hook %s to loops, with the writes that the fixture makes it attempt, or to readers", hook.Name)
		}
	}
	for _, name := range controllers.Names() {
		if len(upstreamWrites[name]) == 0 {
			t.Errorf("add the writes of the controller %s to upstreamWrites", name)
		}
	}
}

// simulated returns the configuration of the server.
func simulated(t *testing.T) *config.Config {
	t.Helper()
	certificate, _, err := cert.GenerateSelfSignedCertKey("authority", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	authority := filepath.Join(t.TempDir(), "authority.crt")
	if err := os.WriteFile(authority, certificate, 0o600); err != nil {
		t.Fatal(err)
	}
	c := config.Default()
	if err := c.Flags().Parse([]string{
		"--etcd-servers=http://unused", "--advertise-address=192.0.2.1", "--authorization-mode=RBAC",
		"--service-cluster-ip-range=10.0.0.0/24",
		"--controllers=*", "--runtime-config=coordination.k8s.io/v1beta1=true", "--client-ca-file=" + authority,
	}); err != nil {
		t.Fatal(err)
	}
	// The flags change the gate for the process, and the other tests of the package need its default.
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate,
		features.CoordinatedLeaderElection, true)
	if err := configureProcess(c, logr.Discard(), &verbosity{}); err != nil {
		t.Fatal(err)
	}
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate,
		features.CoordinatedLeaderElection, true)
	// The handler after the first one waits until a time after the last error of the process, which may be in another
	// bubble.
	handlers := utilruntime.ErrorHandlers
	utilruntime.ErrorHandlers = handlers[:1]
	t.Cleanup(func() { utilruntime.ErrorHandlers = handlers })
	return c
}

// discarded is a log that is never blocked.
type discarded struct{ Log }

// Blocked implements Log.
func (discarded) Blocked(context.Context) error { return nil }
