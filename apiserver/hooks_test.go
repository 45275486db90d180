package apiserver

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"

	"quorate.dev/apiserver/config"
)

func TestHooksRunAfterTheirDependencies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var order []string
		proceed := make(chan struct{})
		h := newHooks([]hook{
			{name: "second", after: []string{"first"}, run: func(context.Context, func()) error {
				order = append(order, "second")
				return nil
			}},
			{name: "first", run: func(ctx context.Context, done func()) error {
				<-proceed
				order = append(order, "first")
				done()
				<-ctx.Done()
				return ctx.Err()
			}},
		})
		ctx, cancel := context.WithCancel(t.Context())
		work := &errgroup.Group{}
		h.start(ctx, ctx, work)
		synctest.Wait()
		if len(order) > 0 {
			t.Errorf("ran %v before the dependency was done", order)
		}
		close(proceed)
		synctest.Wait()
		if want := []string{"first", "second"}; !slices.Equal(order, want) {
			t.Errorf("ran %v, want %v", order, want)
		}
		cancel()
		if err := work.Wait(); err != nil {
			t.Errorf("the end of the context is reported as %v", err)
		}
	})
}

func TestHookThatFails(t *testing.T) {
	failure := errors.New("broken")
	h := newHooks([]hook{{name: "a", run: func(context.Context, func()) error { return failure }}})
	work := &errgroup.Group{}
	h.start(t.Context(), t.Context(), work)
	if err := work.Wait(); !errors.Is(err, failure) || !strings.Contains(err.Error(), "hook a") {
		t.Errorf("got %v", err)
	}
	if closedCheck(h.done["a"]).reached() {
		t.Error("a hook that failed is done")
	}
}

func TestHooksThatHoldLeasesEndFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		untilEnd := func(ctx context.Context, _ func()) error {
			<-ctx.Done()
			return nil
		}
		h := newHooks([]hook{{name: "lease", leases: true, run: untilEnd}, {name: "other", run: untilEnd}})
		background, stop := context.WithCancel(t.Context())
		leasing, release := context.WithCancel(background)
		work := &errgroup.Group{}
		h.start(background, leasing, work)
		release()
		<-h.released()
		synctest.Wait()
		if closedCheck(h.ended["other"]).reached() {
			t.Error("background work ended with the leases")
		}
		stop()
		if err := work.Wait(); err != nil {
			t.Error(err)
		}
	})
}

// composed returns a server whose etcd cannot be reached.
func composed(t *testing.T) *Server {
	t.Helper()
	c := config.Default()
	c.Etcd.Servers = []string{"http://127.0.0.1:1"}
	c.Authorization.Modes = []string{"Node", "RBAC"}
	c.Serving.CertDirectory, c.Serving.AdvertiseAddress = t.TempDir(), "192.0.2.1"
	c.Serving.BindAddress, c.Serving.Port = "127.0.0.1", 0
	s, err := New(t.Context(), c, logr.Discard(), &verbosity{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.closeBackend(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func TestStartUpDependenciesCanBeSatisfied(t *testing.T) {
	hooks, pending := composed(t).hooks, map[string][]string{}
	for _, hook := range hooks.list {
		if _, known := pending[hook.name]; known {
			t.Errorf("two hooks are named %s", hook.name)
		}
		pending[hook.name] = hook.after
		for _, dependency := range hook.after {
			if hooks.done[dependency] == nil {
				t.Errorf("%s depends on the unknown hook %s", hook.name, dependency)
			}
		}
	}
	for before := -1; before != len(pending); {
		before = len(pending)
		for name, after := range pending {
			if !slices.ContainsFunc(after, func(dependency string) bool { _, waits := pending[dependency]; return waits }) {
				delete(pending, name)
			}
		}
	}
	if len(pending) > 0 {
		t.Errorf("hooks that can never run: %v", pending)
	}
}

// TestControllersWaitForDefinitions: the garbage collector and the namespace controller act on what discovery lacks.
func TestControllersWaitForDefinitions(t *testing.T) {
	for _, hook := range composed(t).hooks.list {
		if hook.name != "controllers" {
			continue
		}
		for _, dependency := range append(slices.Clone(bootstrapHooks), hookComplete) {
			if !slices.Contains(hook.after, dependency) {
				t.Errorf("controllers do not wait for %s", dependency)
			}
		}
		if !hook.leases {
			t.Error("controllers do not release their lease before requests are drained")
		}
	}
}

func TestReportedHooks(t *testing.T) {
	// The order of kube-apiserver's /readyz?verbose.
	want := []string{
		"start-apiserver-admission-initializer", "generic-apiserver-start-informers", "priority-and-fairness-config-consumer",
		"priority-and-fairness-filter", "storage-object-count-tracker-hook", "start-apiextensions-informers",
		"start-apiextensions-controllers", "crd-informer-synced",
		"start-system-namespaces-controller", "peer-endpoint-reconciler-controller", "start-cluster-authentication-info-controller",
		"start-kube-apiserver-identity-lease-controller", "start-kube-apiserver-identity-lease-garbage-collector", "storage-readiness",
		"start-legacy-token-tracking-controller", "start-service-ip-repair-controllers", "rbac/bootstrap-roles",
		"scheduling/bootstrap-system-priority-classes", "priority-and-fairness-config-producer", "bootstrap-controller",
		"start-kubernetes-service-cidr-controller", "start-kube-aggregator-informers",
		"apiservice-status-local-available-controller", "apiservice-status-remote-available-controller",
		"apiservice-registration-controller", "apiservice-discovery-controller",
		"kube-apiserver-autoregistration", "apiservice-openapi-controller", "apiservice-openapiv3-controller",
	}
	var got []string
	for _, path := range composed(t).health.Paths() {
		if name, ok := strings.CutPrefix(path, "/livez/poststarthook/"); ok {
			got = append(got, name)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}
