package native

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	api "k8s.io/kubernetes/pkg/apis/core"
	testclock "k8s.io/utils/clock/testing"

	"quorate.dev/apiserver/admission"
	"quorate.dev/apiserver/builtin/certificates"
	"quorate.dev/apiserver/resource"
)

// lifecycle returns the plugin with a cache of namespaces by phase. It has no storage, so reading it panics.
func lifecycle(
	t *testing.T, phases map[string]corev1.NamespacePhase,
) (*NamespaceLifecycle, *testclock.FakePassiveClock) {
	t.Helper()
	indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	for name, phase := range phases {
		namespace := &corev1.Namespace{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NamespaceStatus{Phase: phase},
		}
		if err := indexer.Add(namespace); err != nil {
			t.Fatal(err)
		}
	}
	clock := testclock.NewFakePassiveClock(time.Now())
	return &NamespaceLifecycle{Namespaces: corelisters.NewNamespaceLister(indexer), Clock: clock}, clock
}

func write(operation admission.Operation, group, plural, kind, namespace, name string) *admission.Attributes {
	return &admission.Attributes{
		Operation:  operation,
		Definition: &resource.Definition{Group: group, Plural: plural},
		Version:    &resource.Version{Name: "v1"},
		Kind:       schema.GroupVersionKind{Group: group, Version: "v1", Kind: kind},
		Namespace:  namespace, Name: name, Object: &api.Pod{},
	}
}

func TestNamespaceLifecycle(t *testing.T) {
	plugin, _ := lifecycle(t, map[string]corev1.NamespacePhase{
		"active": corev1.NamespaceActive, "going": corev1.NamespaceTerminating,
	})
	internal := write(admission.Update, "", "pods", "Pod", "going", "a")
	internal.Internal = true
	for name, test := range map[string]struct {
		attributes *admission.Attributes
		want       string // part of the error; empty: admitted
	}{
		"create in an active namespace": {write(admission.Create, "", "pods", "Pod", "active", "a"), ""},
		"create in a terminating namespace": {
			write(admission.Create, "", "pods", "Pod", "going", "a"), "because it is being terminated",
		},
		"update in a terminating namespace": {write(admission.Update, "", "pods", "Pod", "going", "a"), ""},
		"delete in a terminating namespace": {write(admission.Delete, "", "pods", "Pod", "going", "a"), ""},
		"update by the server":              {internal, ""},
		"cluster-scoped object":             {write(admission.Create, "", "nodes", "Node", "", "a"), ""},
		"create of a namespace":             {write(admission.Create, "", "namespaces", "Namespace", "new", "new"), ""},
		"delete of a protected namespace": {
			write(admission.Delete, "", "namespaces", "Namespace", "", "kube-system"), "this namespace may not be deleted",
		},
		"delete of another namespace": {write(admission.Delete, "", "namespaces", "Namespace", "", "active2"), ""},
		"access review in no such namespace": {
			write(admission.Create, "authorization.k8s.io", "localsubjectaccessreviews", "LocalSubjectAccessReview", "none", ""),
			"",
		},
	} {
		t.Run(name, func(t *testing.T) {
			err := plugin.Admit(t.Context(), test.attributes)
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
			if err != nil && !apierrors.IsForbidden(err) {
				t.Errorf("%v is not Forbidden", err)
			}
		})
	}
}

func TestTerminatingCause(t *testing.T) {
	plugin, _ := lifecycle(t, map[string]corev1.NamespacePhase{"going": corev1.NamespaceTerminating})
	err := plugin.Admit(t.Context(), write(admission.Create, "", "pods", "Pod", "going", "a"))
	if !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		t.Errorf("%v lacks the cause by which controllers recognize it", err)
	}
}

// A namespace that was deleted through this server may still be active in the cache.
func TestDeletionMakesTheCacheStaleForAWhile(t *testing.T) {
	plugin, clock := lifecycle(t, map[string]corev1.NamespacePhase{"a": corev1.NamespaceActive})
	if err := plugin.Admit(t.Context(), write(admission.Delete, "", "namespaces", "Namespace", "", "a")); err != nil {
		t.Fatal(err)
	}
	if !plugin.isStale("a") || plugin.isStale("b") {
		t.Errorf("stale: a %t, b %t; want only a", plugin.isStale("a"), plugin.isStale("b"))
	}
	clock.SetTime(clock.Now().Add(staleTime))
	if plugin.isStale("a") {
		t.Error("the cache is still not used after the stale time")
	}
	if err := plugin.Admit(t.Context(), write(admission.Create, "", "pods", "Pod", "a", "x")); err != nil {
		t.Error(err)
	}
	clock.SetTime(clock.Now().Add(time.Second))
	plugin.markStale("b")
	if _, kept := plugin.staleUntil["a"]; kept {
		t.Error("an expired entry was kept")
	}
}

func TestServedGroups(t *testing.T) {
	check := ServedGroups{Groups: []string{"demo.example.com"}}
	for group, served := range map[string]bool{"demo.example.com": true, "example.com": false} {
		attributes := write(admission.Create, "apiextensions.k8s.io", "customresourcedefinitions",
			"CustomResourceDefinition", "", "a")
		attributes.Object = &apiextensions.CustomResourceDefinition{
			Spec: apiextensions.CustomResourceDefinitionSpec{Group: group},
		}
		if err := check.Validate(t.Context(), attributes); (err == nil) != served ||
			err != nil && !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", group, err)
		}
	}
	if err := check.Validate(
		t.Context(), write(admission.Create, "demo.example.com", "widgets", "Widget", "a", "b"),
	); err != nil {
		t.Error(err)
	}
}

func TestEscalationCheckIgnoresOtherWrites(t *testing.T) {
	var check EscalationCheck // a guard without an authorizer panics
	withoutUser := write(admission.Create, "rbac.authorization.k8s.io", "roles", "Role", "a", "b")
	for _, attributes := range []*admission.Attributes{withoutUser, write(admission.Create, "", "pods", "Pod", "a", "b")} {
		if err := check.Admit(t.Context(), attributes); err != nil {
			t.Error(err)
		}
	}
	if plugin := check.Plugin(); !plugin.Internal || plugin.Name != "" {
		t.Errorf("%+v: the server's own writes must be checked, and the check is not a plugin of kube-apiserver", plugin)
	}
}

// Reservers that concern other resources must not touch a write.
func TestReserversIgnoreOtherResources(t *testing.T) {
	reservers := []admission.Reserver{
		ServiceAddresses{}, CertificateRequests{Metrics: certificates.NewMetrics(prometheus.NewRegistry())},
	}
	for _, operation := range []admission.Operation{admission.Create, admission.Update, admission.Delete} {
		pod := write(operation, "", "pods", "Pod", "a", "b")
		status := write(operation, "", "services", "Service", "a", "b")
		status.Subresource = "status"
		for _, attributes := range []*admission.Attributes{pod, status} {
			if operation == admission.Delete && attributes == status {
				continue // completes the deletion of the Service
			}
			for _, reserver := range reservers {
				use(t, reserver, attributes)
			}
		}
	}
}

func use(t *testing.T, reserver admission.Reserver, attributes *admission.Attributes) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	if err := reserver.Reserve(ctx, attributes); err != nil {
		t.Error(err)
	}
	reserver.Commit(ctx, attributes)
	reserver.Rollback(ctx, attributes)
}
