package apiservices

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/observed"
	"quorate.dev/operator/pki"
	"quorate.dev/operator/reconcile/credentials"
	"quorate.dev/operator/reconcile/owned"
	"quorate.dev/operator/reconcile/owned/ownedtest"
)

// aggregated returns a change of a cluster: it registers metrics.k8s.io, with the authority in an object.
func aggregated(source *v1alpha1.CABundleSource) func(*v1alpha1.ApiServerCluster) {
	return func(c *v1alpha1.ApiServerCluster) {
		c.Spec.Aggregation.APIServices = []v1alpha1.AggregatedAPIService{
			{Group: "metrics.k8s.io", Version: "v1beta1", Address: "192.0.2.7:443", CABundle: source},
		}
	}
}

// announced is a change of a cluster: its status lists the APIServices.
func announced(c *v1alpha1.ApiServerCluster) {
	c.Status.APIServices = []v1alpha1.APIServiceStatus{{Name: "v1beta1.metrics.k8s.io"}, {Name: "v1.example.org"}}
}

// extension is a change of a cluster: it extends the API of its host by example.org/v1.
func extension(c *v1alpha1.ApiServerCluster) {
	c.Spec.Mode = v1alpha1.ModeExtension
	c.Spec.Extension.Groups = []v1alpha1.ExtensionGroup{{Name: "example.org", Versions: []string{"v1"}}}
}

// replica returns a ready pod with arguments.
func replica(args ...string) corev1.Pod {
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "demo-0"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Args: args}}},
		Status: corev1.PodStatus{
			PodIP: "192.0.2.1", Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		},
	}
}

// ensure executes Ensure on a host that also plays the API of the cluster, with pods.
func ensure(h *ownedtest.Host, pods ...corev1.Pod) (Result, error) {
	steps := Steps{
		Objects: h.Objects, Connect: func(*rest.Config) (client.Client, error) { return h.Client, nil },
		Discover: func(context.Context, *rest.Config, string) error {
			if h.Exists("not-served", &corev1.ConfigMap{}) {
				return errors.New("404 Not Found")
			}
			return nil
		},
	}
	return steps.Ensure(h.Context(), Input{
		State:       &observed.State{Cluster: h.Cluster(), Pods: pods},
		Credentials: credentials.Set{Trusted: []byte("CA")}, Now: ownedtest.Now(),
	})
}

// reason executes Ensure and returns the reason of the first APIService.
func reason(t *testing.T, h *ownedtest.Host, pods ...corev1.Pod) string {
	t.Helper()
	result, err := ensure(h, pods...)
	h.Must(err)
	if result.Statuses == nil || len(*result.Statuses) == 0 {
		return "none"
	}
	if (result.Due.IsZero()) == ((*result.Statuses)[0].Available != metav1.ConditionTrue && !result.Announced) {
		t.Errorf("due %s with %+v", result.Due, *result.Statuses)
	}
	return (*result.Statuses)[0].Reason
}

// routed returns a ready pod that reaches the endpoints of extension API servers.
func routed() corev1.Pod { return replica("--enable-aggregator-routing=true") }

// TestRegistration follows an extension API server from its announcement to its removal.
func TestRegistration(t *testing.T) {
	authority, err := pki.NewAuthority("metrics", time.Hour, ownedtest.Now())
	if err != nil {
		t.Fatal(err)
	}
	h := ownedtest.NewHost(t, ownedtest.NewCluster(aggregated(&v1alpha1.CABundleSource{
		ConfigMapRef: &corev1.LocalObjectReference{Name: "ca"},
	})))
	expect := func(want string, pods ...corev1.Pod) {
		t.Helper()
		if got := reason(t, h, pods...); got != want {
			t.Errorf("reason %s, want %s", got, want)
		}
	}
	expect(v1alpha1.ReasonPending)
	ownedtest.Change(h, "demo", &v1alpha1.ApiServerCluster{}, func(c *v1alpha1.ApiServerCluster) {
		c.Status.APIServices = []v1alpha1.APIServiceStatus{{Name: "v1beta1.metrics.k8s.io"}}
	})
	expect(v1alpha1.ReasonNoReadyReplicas)
	expect(v1alpha1.ReasonPending, replica())
	expect(v1alpha1.ReasonInvalidCABundle, routed())
	if len(h.Names()) != 0 {
		t.Errorf("objects %v", h.Names())
	}
	h.CreateAll(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "ca"}, Data: map[string]string{
		desired.AuthorityKey: string(authority.Certificate),
	}})
	expect(v1alpha1.ReasonNotEvaluated, routed())
	if events := h.Events(); !slices.Equal(
		events, []string{"Normal APIServiceRegistered: Registered APIService v1beta1.metrics.k8s.io"},
	) {
		t.Errorf("events %q", events)
	}
	service := &apiregistrationv1.APIService{}
	h.Must(h.API.Get(t.Context(), ownedtest.Key("v1beta1.metrics.k8s.io"), service))
	service.Spec.CABundle = nil
	h.Must(h.API.Update(t.Context(), service))
	service.Status.Conditions = []apiregistrationv1.APIServiceCondition{{
		Type: apiregistrationv1.Available, Status: apiregistrationv1.ConditionTrue, Reason: "Passed",
	}}
	h.Must(h.API.Status().Update(t.Context(), service))
	expect("Passed", routed())
	if events := h.Events(); !slices.Equal(
		events, []string{"Normal APIServiceUpdated: Updated APIService v1beta1.metrics.k8s.io"},
	) {
		t.Errorf("events %q", events)
	}
	ownedtest.Change(h, "demo", &v1alpha1.ApiServerCluster{}, func(c *v1alpha1.ApiServerCluster) {
		c.Spec.Aggregation.APIServices = nil
	})
	expect("none", replica())
	if left := h.Names(); !slices.Equal(left, []string{"ConfigMap ca", "Namespace kube-system"}) {
		t.Errorf("left %v", left)
	}
}

// TestCABundles checks which content of a Secret or ConfigMap is published, and why other content is not.
func TestCABundles(t *testing.T) {
	authority, err := pki.NewAuthority("metrics", time.Hour, ownedtest.Now())
	if err != nil {
		t.Fatal(err)
	}
	h := ownedtest.NewHost(t,
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "ca"}, Data: map[string][]byte{
			desired.AuthorityKey: append(slices.Clone(authority.Key), authority.Certificate...), "bad": []byte("nonsense"),
		}})
	for name, test := range map[string]struct {
		source v1alpha1.CABundleSource
		err    string
	}{
		"certificates": {v1alpha1.CABundleSource{SecretRef: &corev1.LocalObjectReference{Name: "ca"}}, ""},
		"no certificate": {
			v1alpha1.CABundleSource{SecretRef: &corev1.LocalObjectReference{Name: "ca"}, Key: "bad"},
			"secret ca, key bad, has no valid certificates",
		},
		"no key": {
			v1alpha1.CABundleSource{SecretRef: &corev1.LocalObjectReference{Name: "ca"}, Key: "x"}, "secret ca has no key x",
		},
		"no object": {
			v1alpha1.CABundleSource{ConfigMapRef: &corev1.LocalObjectReference{Name: "ca"}}, "configmap ca does not exist",
		},
	} {
		bundle, err := readCABundle(t.Context(), h.Reader, "ns", &test.source)
		if (err == nil) != (test.err == "") || err != nil && !strings.HasPrefix(err.Error(), test.err) {
			t.Errorf("%s: %v, want %q", name, err, test.err)
		}
		if strings.Contains(string(bundle), "PRIVATE") || err == nil && string(bundle) != string(authority.Certificate) {
			t.Errorf("%s: published %q", name, bundle)
		}
	}
	h.Refuse = func(string) error { return ownedtest.ErrUnavailable }
	if _, err := readCABundle(
		t.Context(), h.Reader, "ns", &v1alpha1.CABundleSource{SecretRef: &corev1.LocalObjectReference{Name: "ca"}},
	); !errors.Is(err, ownedtest.ErrUnavailable) {
		t.Errorf("an unreadable Secret: %v", err)
	}
}

// TestConflict checks that an APIService of another owner is reported and not changed.
func TestConflict(t *testing.T) {
	for _, change := range []func(*v1alpha1.ApiServerCluster){aggregated(nil), extension} {
		foreign := []client.Object{
			&apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: "v1beta1.metrics.k8s.io"}},
			&apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: "v1.example.org"}},
		}
		h := ownedtest.NewHost(t, append(foreign, ownedtest.NewCluster(change, announced))...)
		if got := reason(t, h, routed()); got != v1alpha1.ReasonConflict {
			t.Errorf("reason %s", got)
		}
	}
}

// TestFailures lets each request fail with which extension API servers are registered and removed. The status reports
// the error; a failure of one APIService is no failure of the step.
func TestFailures(t *testing.T) {
	step := func(h *ownedtest.Host) error {
		result, err := ensure(h, routed())
		h.Must(err)
		for _, status := range *result.Statuses {
			if status.Reason == v1alpha1.ReasonRegistrationFailed {
				if !strings.Contains(status.Message, ownedtest.ErrUnavailable.Error()) {
					t.Errorf("status %+v", status)
				}
				return ownedtest.ErrUnavailable
			}
		}
		return nil
	}
	former := func(t *testing.T, change func(*v1alpha1.ApiServerCluster)) *ownedtest.Host {
		cluster := ownedtest.NewCluster(change, announced)
		selector := desired.RegistrationSelector(cluster)
		if cluster.IsExtension() {
			selector = desired.ExtensionSelector(cluster)
		}
		return ownedtest.NewHost(t, cluster, &apiregistrationv1.APIService{
			ObjectMeta: metav1.ObjectMeta{Name: "v1.former", Labels: selector},
		})
	}
	ownedtest.FailEach(t, func(t *testing.T) *ownedtest.Host { return former(t, aggregated(nil)) }, step)
	h := former(t, extension)
	h.Must(step(h))
	if left := h.Names(); !slices.Equal(left, []string{"APIService v1.example.org"}) {
		t.Errorf("left %v", left)
	}
	for _, verb := range []string{"create APIService", "delete APIService", "list APIService"} {
		h := former(t, extension)
		h.Refuse = func(request string) error {
			if strings.HasPrefix(request, verb) {
				return ownedtest.ErrUnavailable
			}
			return nil
		}
		if step(h) == nil {
			t.Errorf("the error of %s is not in the status", verb)
		}
	}
	unreachable := Steps{
		Objects: h.Objects, Connect: func(*rest.Config) (client.Client, error) { return nil, ownedtest.ErrUnavailable },
	}
	in := Input{
		State: &observed.State{Cluster: ownedtest.NewCluster(aggregated(nil), announced), Pods: []corev1.Pod{routed()}},
	}
	if _, err := unreachable.Ensure(t.Context(), in); !errors.Is(err, ownedtest.ErrUnavailable) {
		t.Errorf("an unreachable cluster: %v", err)
	}
	if result, err := ensure(ownedtest.NewHost(t, ownedtest.NewCluster())); err != nil || result.Statuses != nil {
		t.Errorf("without APIServices: %+v, %v", result, err)
	}
}

// TestRegistrationInHost checks that the group of an extension cluster is registered once it is served, and stays
// registered without a ready replica.
func TestRegistrationInHost(t *testing.T) {
	h := ownedtest.NewHost(t, ownedtest.NewCluster(extension))
	expect := func(want string, pods ...corev1.Pod) {
		t.Helper()
		if got := reason(t, h, pods...); got != want {
			t.Errorf("reason %s, want %s", got, want)
		}
	}
	expect(v1alpha1.ReasonPending, routed())
	ownedtest.Change(h, "demo", &v1alpha1.ApiServerCluster{}, func(c *v1alpha1.ApiServerCluster) {
		c.Status.APIServices = []v1alpha1.APIServiceStatus{{Name: "v1.example.org"}}
	})
	expect(v1alpha1.ReasonNoReadyReplicas)
	h.CreateAll(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "not-served"}})
	expect(v1alpha1.ReasonNotServed, routed())
	failed := false
	h.Refuse = func(request string) error { // the first read fails
		if failed || request != "get APIService v1.example.org" {
			return nil
		}
		failed = true
		return ownedtest.ErrUnavailable
	}
	expect(v1alpha1.ReasonRegistrationFailed, routed())
	if got := h.Names(); !failed || slices.Contains(got, "APIService v1.example.org") {
		t.Errorf("an APIService that is not served is registered after a failed read: %q", got)
	}
	h.Delete("not-served", &corev1.ConfigMap{})
	expect(v1alpha1.ReasonNotEvaluated, routed())
	expect(v1alpha1.ReasonNotEvaluated)
	for trusted, want := range map[string]int{"CA": 0, "another CA": 1} {
		if outdated, err := Outdated(t.Context(), h.Reader, h.Cluster(), []byte(trusted)); err != nil ||
			len(outdated) != want {
			t.Errorf("outdated %v, %v", outdated, err)
		}
	}
	if outdated, err := Outdated(t.Context(), h.Reader, ownedtest.NewCluster(), nil); err != nil || outdated != nil {
		t.Errorf("of another mode: %v, %v", outdated, err)
	}
}

// TestHostAccess checks that API servers in mode Extension get access to their host, that it is revoked, and that
// objects of other owners are left alone.
func TestHostAccess(t *testing.T) {
	cluster, file := ownedtest.NewCluster(extension), filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(file, []byte("CA"), 0o600); err != nil {
		t.Fatal(err)
	}
	grant := func(h *ownedtest.Host) error {
		return EnsureHostAccess(h.Context(), h.Objects, cluster, Host{Server: "https://host", CAFile: file})
	}
	start := func(t *testing.T) *ownedtest.Host { return ownedtest.NewHost(t) }
	ownedtest.FailEach(t, start, grant)
	granted := func(t *testing.T) *ownedtest.Host {
		h := start(t)
		h.Must(grant(h))
		return h
	}
	ownedtest.FailEach(t, granted, func(h *ownedtest.Host) error {
		return RevokeHostAccess(h.Context(), h.Objects, cluster)
	})
	h := granted(t)
	h.Must(RevokeHostAccess(t.Context(), h.Objects, cluster))
	for _, name := range h.Names() {
		if strings.Contains(name, "Binding") {
			t.Errorf("%s is left", name)
		}
	}
	h.Must(EnsureHostAccess(t.Context(), h.Objects, ownedtest.NewCluster(), Host{}))
	if err := EnsureHostAccess(t.Context(), h.Objects, cluster, Host{CAFile: "missing"}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without the authority of the host: %v", err)
	}
	foreign := start(t)
	foreign.CreateAll(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "demo"}})
	if err := grant(foreign); !errors.Is(err, owned.ErrForeign) {
		t.Errorf("a ServiceAccount of another owner: %v", err)
	}
	forbidden := start(t)
	forbidden.Refuse = func(request string) error {
		if strings.HasPrefix(request, "create ClusterRoleBinding") {
			return apierrors.NewForbidden(schema.GroupResource{}, "b", errors.New("no permission"))
		}
		return nil
	}
	if err := grant(forbidden); err == nil || !strings.Contains(err.Error(), "manifests/extension.yaml") {
		t.Errorf("without permissions: %v", err)
	}
	binding := desired.HostRoleBinding(cluster)
	binding.Labels = nil
	others := ownedtest.NewHost(t, binding)
	others.Must(RevokeHostAccess(t.Context(), others.Objects, cluster))
	if len(others.Names()) != 1 {
		t.Error("a binding of another owner was deleted")
	}
}

// TestUnregister checks that the APIServices of a cluster are deleted, and that terminating ones are counted.
func TestUnregister(t *testing.T) {
	cluster := ownedtest.NewCluster(extension)
	service := func(name string) *apiregistrationv1.APIService {
		return &apiregistrationv1.APIService{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: desired.ExtensionSelector(cluster)},
		}
	}
	terminating := service("v1.b")
	terminating.Finalizers, terminating.DeletionTimestamp = []string{"f/f"}, &metav1.Time{Time: ownedtest.Now()}
	h := ownedtest.NewHost(t, service("v1.a"), terminating)
	if deleted, waiting, err := Unregister(t.Context(), h.Objects, cluster); err != nil || deleted != 1 || waiting != 1 {
		t.Errorf("deleted %d, terminating %d, %v", deleted, waiting, err)
	}
	ownedtest.FailEach(t, func(t *testing.T) *ownedtest.Host {
		return ownedtest.NewHost(t,
			service("v1.a"))
	}, func(h *ownedtest.Host) error {
		_, _, err := Unregister(h.Context(), h.Objects, cluster)
		return err
	})
}

// TestDiscover checks the requests to an API server: a path that is not served is an error, as is an unknown authority.
func TestDiscover(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/apis/example.org/v1" {
			http.NotFound(w, r)
		}
	}))
	defer server.Close()
	trusted := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	config := &rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{CAData: trusted}}
	if err := Discover(t.Context(), config, "/apis/example.org/v1"); err != nil {
		t.Error(err)
	}
	if err := Discover(t.Context(), config, "/apis/example.org/v2"); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("a path that is not served: %v", err)
	}
	unknown := x509.UnknownAuthorityError{}
	if err := Discover(t.Context(), &rest.Config{Host: server.URL}, "/apis/example.org/v1"); !errors.As(err, &unknown) {
		t.Errorf("an unknown authority: %v", err)
	}
	if err := Discover(t.Context(), &rest.Config{Host: "https://%"}, "/"); err == nil {
		t.Error("a host that is no URL")
	}
	if err := Discover(
		t.Context(), &rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{CAFile: "missing"}}, "/",
	); err == nil {
		t.Error("a missing authority")
	}
	connected, err := Connect(config)
	if err != nil {
		t.Fatal(err)
	}
	if err := connected.Get(
		t.Context(), ownedtest.Key("v1.example.org"), &apiregistrationv1.APIService{},
	); !apierrors.IsNotFound(err) {
		t.Errorf("a request of the client: %v", err)
	}
}
