package native

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	certificatesapi "k8s.io/kubernetes/pkg/apis/certificates"
	api "k8s.io/kubernetes/pkg/apis/core"
	rbacapi "k8s.io/kubernetes/pkg/apis/rbac"
	testclock "k8s.io/utils/clock/testing"

	"quorate.dev/apiserver/admission"
	authorization "quorate.dev/apiserver/authorization/rbac"
	"quorate.dev/apiserver/builtin/certificates"
	"quorate.dev/apiserver/builtin/rbac"
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
			ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: "7"}, Status: corev1.NamespaceStatus{Phase: phase},
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

// TestCreationsDependOnTheNamespace checks which revision of the namespace a creation depends on: the revision in the
// cache, or in storage if the cache lags. Updates, and creations in namespaces of another cluster, depend on none.
func TestCreationsDependOnTheNamespace(t *testing.T) {
	for name, test := range map[string]struct {
		operation admission.Operation
		remote    bool
		stale     bool
		want      int64
	}{
		"creation":                     {admission.Create, false, false, 7},
		"creation after a deletion":    {admission.Create, false, true, 9},
		"namespace of another cluster": {admission.Create, true, false, 0},
		"update":                       {admission.Update, false, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			plugin, _ := lifecycle(t, map[string]corev1.NamespacePhase{"a": corev1.NamespaceActive})
			plugin.Remote = test.remote
			plugin.Get = func(context.Context, string) (metav1.Object, error) {
				return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "9"}}, nil
			}
			if test.stale {
				plugin.markStale("a")
			}
			a := write(test.operation, "", "pods", "Pod", "a", "x")
			if err := plugin.Admit(t.Context(), a); err != nil || a.NamespaceRevision != test.want {
				t.Errorf("got revision %d, want %d: %v", a.NamespaceRevision, test.want, err)
			}
		})
	}
}

// failingLister is a lister whose reads fail.
type failingLister struct{ corelisters.NamespaceLister }

func (failingLister) Get(string) (*corev1.Namespace, error) {
	return nil, errors.New("the cache is broken")
}

// TestNamespacesThatTheCacheLacks: a namespace that the cache does not have yet, or has as active although it was
// deleted through this server, is read from storage.
func TestNamespacesThatTheCacheLacks(t *testing.T) {
	terminating := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &metav1.Time{Time: time.Unix(1, 0)}}}
	active := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "9"}}
	missing := apierrors.NewNotFound(namespaces, "a")
	unavailable := apierrors.NewServerTimeout(namespaces, "get", 1)
	for name, test := range map[string]struct {
		cached    bool // as active
		deleted   bool // through this server
		operation admission.Operation
		stored    *corev1.Namespace
		readErr   error
		reason    metav1.StatusReason // of the error; empty: admitted
	}{
		"created a moment ago":          {false, false, admission.Create, active, nil, ""},
		"create in a deleted namespace": {true, true, admission.Create, terminating, nil, metav1.StatusReasonForbidden},
		"update in a deleted namespace": {true, true, admission.Update, terminating, nil, ""},
		"deleted and created again":     {true, true, admission.Create, active, nil, ""},
		"create in no namespace":        {false, false, admission.Create, nil, missing, metav1.StatusReasonNotFound},
		"update in no namespace":        {false, false, admission.Update, nil, missing, ""},
		"storage cannot be read": {
			false, false, admission.Create, nil, unavailable, metav1.StatusReasonServerTimeout,
		},
		"cached namespaces need no storage": {true, false, admission.Create, nil, unavailable, ""},
	} {
		t.Run(name, func(t *testing.T) {
			phases := map[string]corev1.NamespacePhase{}
			if test.cached {
				phases["a"] = corev1.NamespaceActive
			}
			plugin, _ := lifecycle(t, phases)
			plugin.Get = func(_ context.Context, name string) (metav1.Object, error) {
				if name != "a" {
					t.Errorf("namespace %s was read", name)
				}
				return test.stored, test.readErr
			}
			chain := &admission.Chain{Plugins: []admission.Plugin{plugin.Plugin()}}
			if test.deleted {
				if err := chain.Admit(t.Context(), write(admission.Delete, "", "namespaces", "Namespace", "", "a")); err != nil {
					t.Fatal(err)
				}
			}
			err := chain.Admit(t.Context(), write(test.operation, "", "pods", "Pod", "a", "x"))
			if (err == nil) != (test.reason == "") || err != nil && apierrors.ReasonForError(err) != test.reason {
				t.Errorf("got %v, want %q", err, test.reason)
			}
		})
	}
	plugin, _ := lifecycle(t, nil)
	plugin.Namespaces = failingLister{}
	err := plugin.Admit(t.Context(), write(admission.Create, "", "pods", "Pod", "a", "x"))
	if !apierrors.IsInternalError(err) {
		t.Errorf("a cache that fails: %v", err)
	}
}

// stored is a client of one object.
type stored struct {
	resource.Client
	key    resource.Key
	object runtime.Object
}

func (s stored) Get(_ context.Context, key resource.Key, options resource.ReadOptions) (runtime.Object, error) {
	if key != s.key || options.Cached {
		return nil, apierrors.NewNotFound(key.GroupResource, key.Name)
	}
	return s.object, nil
}

func TestStoredNamespace(t *testing.T) {
	namespace := &api.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "1"}}
	get := StoredNamespace(stored{key: resource.Key{GroupResource: namespaces, Name: "a"}, object: namespace})
	if got, err := get(t.Context(), "a"); err != nil || got.GetUID() != "1" {
		t.Errorf("got %v, %v", got, err)
	}
	if _, err := get(t.Context(), "b"); !apierrors.IsNotFound(err) {
		t.Errorf("a namespace that does not exist: %v", err)
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
	// A definition that is stored already must remain updatable.
	update := write(admission.Update, "apiextensions.k8s.io", "customresourcedefinitions", "CustomResourceDefinition",
		"", "a")
	update.Object = &apiextensions.CustomResourceDefinition{}
	chain := &admission.Chain{Plugins: []admission.Plugin{check.Plugin()}}
	if err := chain.Validate(t.Context(), update); err != nil {
		t.Error(err)
	}
}

// TestEscalationCheck: as with kube-apiserver, a user cannot create a role with permissions that the user does not
// have.
func TestEscalationCheck(t *testing.T) {
	policy := authorization.New()
	policy.SetClusterRole("reader", &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "reader"},
		Rules:      []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"pods"}}},
	})
	policy.SetClusterRoleBinding("reader", &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "reader"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "reader"},
		Subjects:   []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: "reader"}},
	})
	check := EscalationCheck{Guard: rbac.Guard{Authorizer: policy, Rules: policy.Resolver()}}
	chain := &admission.Chain{Plugins: []admission.Plugin{check.Plugin()}}
	for name, test := range map[string]struct {
		user     user.DefaultInfo
		verb     string
		rejected bool
	}{
		"own permissions":  {user.DefaultInfo{Name: "reader"}, "get", false},
		"more permissions": {user.DefaultInfo{Name: "reader"}, "delete", true},
		"more permissions, by a superuser": {
			user.DefaultInfo{Name: "root", Groups: []string{user.SystemPrivilegedGroup}}, "delete", false,
		},
	} {
		attributes := write(admission.Create, "rbac.authorization.k8s.io", "clusterroles", "ClusterRole", "", "new")
		attributes.User = &test.user
		attributes.Object = &rbacapi.ClusterRole{
			ObjectMeta: metav1.ObjectMeta{Name: "new"},
			Rules:      []rbacapi.PolicyRule{{Verbs: []string{test.verb}, APIGroups: []string{""}, Resources: []string{"pods"}}},
		}
		ctx := request.WithRequestInfo(request.WithUser(t.Context(), &test.user), &request.RequestInfo{
			IsResourceRequest: true, APIGroup: rbacv1.GroupName, APIVersion: "v1", Resource: "clusterroles",
		})
		if err := chain.Admit(ctx, attributes); apierrors.IsForbidden(err) != test.rejected || !test.rejected && err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestIssuedCertificatesAreCounted: of all stored writes of CertificateSigningRequests, only updates of the status
// issue certificates.
func TestIssuedCertificatesAreCounted(t *testing.T) {
	registry := prometheus.NewRegistry()
	reserver := CertificateRequests{Metrics: certificates.NewMetrics(registry)}
	seconds := int32(600)
	before := &certificatesapi.CertificateSigningRequest{
		Spec: certificatesapi.CertificateSigningRequestSpec{ExpirationSeconds: &seconds},
	}
	after := before.DeepCopy()
	after.Status.Certificate = []byte("-----BEGIN CERTIFICATE-----")
	for _, test := range []struct {
		operation   admission.Operation
		group       string
		subresource string
		want        string // series that are counted so far
	}{
		{admission.Create, "certificates.k8s.io", "", ""},
		{admission.Update, "certificates.k8s.io", "", ""},
		{admission.Update, "certificates.k8s.io", "approval", ""},
		{admission.Update, "example.com", "status", ""},
		{admission.Update, "certificates.k8s.io", "status", "apiserver_certificates_registry_csr_requested_duration_total"},
	} {
		attributes := write(test.operation, test.group, "certificatesigningrequests", "CertificateSigningRequest", "", "a")
		attributes.Subresource, attributes.Old, attributes.Object = test.subresource, before, after
		reserver.Commit(t.Context(), attributes)
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, family := range families {
			got = append(got, family.GetName())
		}
		if strings.Join(got, " ") != test.want {
			t.Errorf("%s of %q in %s: counted %q, want %q", test.operation, test.subresource, test.group, got, test.want)
		}
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
