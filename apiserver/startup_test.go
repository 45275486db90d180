package apiserver

import (
	"context"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"

	"quorate.dev/apiserver/config"
	"quorate.dev/apiserver/controllers/bootstrap"
	"quorate.dev/apiserver/resource"
	"quorate.dev/panics"
)

// composed returns a server whose etcd cannot be reached.
func composed(t *testing.T) *Server {
	t.Helper()
	return composedWith(t, nil)
}

// composedWith returns what composed returns, with a value of --runtime-config.
func composedWith(t *testing.T, runtimeConfig map[string]string) *Server {
	t.Helper()
	c := config.Default()
	c.API.RuntimeConfig = runtimeConfig
	c.Etcd.Servers = []string{"http://127.0.0.1:1"}
	c.Authorization.Modes = []string{"Node", "RBAC"}
	c.Serving.CertDirectory, c.Serving.AdvertiseAddress = t.TempDir(), "192.0.2.1"
	c.Serving.BindAddress, c.Serving.Port = "127.0.0.1", 0
	s, err := New(t.Context(), c, logr.Discard(), &verbosity{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.stores.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

var update = flag.Bool("update", false, "rewrite the golden files")

// TestStartOrder compares the order in which a replica starts with a golden file: a change of the order must be
// deliberate.
func TestStartOrder(t *testing.T) {
	const file = "testdata/start-order.txt"
	got := composed(t).hooks.Sequence().String()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("the order has changed; run the test with -update if that is intended\n%s", cmp.Diff(string(want), got))
	}
}

// TestStorageVersionsAreRecordedFirst checks the order of hooks with the feature gate StorageVersionAPI: hooks that
// write wait for the storage versions, and the storage versions wait for the identity Lease only.
func TestStorageVersionsAreRecordedFirst(t *testing.T) {
	if composed(t).storageVersions != nil {
		t.Error("storage versions are recorded by default")
	}
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.StorageVersionAPI, true)
	s := composedWith(t, map[string]string{"internal.apiserver.k8s.io/v1alpha1": "true"})
	after := map[string][]string{}
	for _, hook := range s.hooks.Sequence() {
		after[hook.Name] = hook.After
	}
	for name, want := range map[string][]string{
		hookIdentity: {hookNamespaces}, hookStorageVersions: {hookIdentity},
		hookClusterPolicy: {hookStorage, hookStorageVersions}, hookFlowControl: {hookStorage, hookStorageVersions},
	} {
		if !slices.Equal(after[name], want) {
			t.Errorf("%s is after %v, want %v", name, after[name], want)
		}
	}
	key := resource.Key{GroupResource: bootstrap.ConfigMaps, Namespace: "default", Name: "a"}
	if err := s.objects.Named("writer").Delete(t.Context(), key, nil); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("an own write: got the error %v", err)
	}
}

// TestControllersWaitForDefinitions: the garbage collector and the namespace controller act on what discovery lacks.
func TestControllersWaitForDefinitions(t *testing.T) {
	for _, hook := range composed(t).hooks.Sequence() {
		if hook.Name != "controllers" {
			continue
		}
		for _, dependency := range append(slices.Clone(bootstrapHooks), hookComplete) {
			if !slices.Contains(hook.After, dependency) {
				t.Errorf("controllers do not wait for %s", dependency)
			}
		}
		if !hook.Leases {
			t.Error("controllers do not release their lease before requests are drained")
		}
	}
}

// TestOrphansRestart: a hook that restarts is called again after a panic.
func TestOrphansRestart(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, hook := range composed(t).hooks.Sequence() {
		if hook.Name != "orphans" {
			continue
		}
		for range 2 {
			if err := panics.Catch(func() error { return hook.Run(ended, func() {}) }); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestInformersEndTheReplica: the panic of an informer's handler is the error of the hook that runs the informers.
func TestInformersEndTheReplica(t *testing.T) {
	s := composed(t)
	s.mode.(*cluster).informerOptions(s.client, s.failures).Failed(panics.Catch(func() error { panic("handler") }))
	for _, h := range s.hooks.Sequence() {
		if h.Name != hookInformers {
			continue
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := h.Run(ctx, func() {}); err == nil || !strings.Contains(err.Error(), "handler") {
			t.Errorf("got %v", err)
		}
	}
}

func TestReportedHooks(t *testing.T) {
	// The order of kube-apiserver's /readyz?verbose.
	want := []string{
		"start-apiserver-admission-initializer", "generic-apiserver-start-informers", "priority-and-fairness-config-consumer",
		"priority-and-fairness-filter", "storage-object-count-tracker-hook", "start-apiextensions-informers",
		"start-apiextensions-controllers", "crd-informer-synced",
		"start-system-namespaces-controller", "peer-endpoint-reconciler-controller",
		"start-cluster-authentication-info-controller", "start-kube-apiserver-identity-lease-controller",
		"start-kube-apiserver-identity-lease-garbage-collector", "storage-readiness",
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
