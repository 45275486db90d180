package owned_test

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/reconcile/owned"
	"quorate.dev/operator/reconcile/owned/ownedtest"
)

// secret returns a Secret with one value.
func secret(value string) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "demo-x", Labels: map[string]string{"app": "demo"}},
		Data:       map[string][]byte{"key": []byte(value)},
	}
}

// TestSecrets checks that Secrets are created with an owner, that updates keep labels of others, that unchanged objects
// are not written, and that objects of other owners are left alone.
func TestSecrets(t *testing.T) {
	h, cluster := ownedtest.NewHost(t), ownedtest.NewCluster()
	ctx, stored := t.Context(), &corev1.Secret{}
	h.Must(h.EnsureSecret(ctx, cluster, secret("a")))
	ownedtest.Change(h, "demo-x", stored, func(s *corev1.Secret) { s.Labels = map[string]string{"others": "kept"} })
	h.Must(h.EnsureSecret(ctx, cluster, secret("b")))
	h.Read("demo-x", stored)
	if !metav1.IsControlledBy(stored, cluster) || h.Secret("demo-x")["key"] != "b" || stored.Labels["others"] != "kept" ||
		stored.Labels["app"] != "demo" {
		t.Errorf("stored %+v", stored)
	}
	annotated := secret("c")
	annotated.Annotations = map[string]string{"created": "today"}
	h.Must(h.WriteSecret(ctx, cluster, true, stored, annotated))
	h.Read("demo-x", stored)
	if h.Secret("demo-x")["key"] != "c" || stored.Annotations["created"] != "today" {
		t.Errorf("written %+v", stored)
	}
	h.Refuse = func(request string) error {
		if strings.HasPrefix(request, "update") {
			return ownedtest.ErrUnavailable
		}
		return nil
	}
	h.Must(h.EnsureSecret(ctx, cluster, secret("c")))
	if err := h.EnsureSecret(ctx, cluster, secret("d")); !errors.Is(err, ownedtest.ErrUnavailable) {
		t.Errorf("a failed update: %v", err)
	}
	h.Refuse = nil
	other := ownedtest.NewCluster(func(c *v1alpha1.ApiServerCluster) { c.UID = "other" })
	if err := h.EnsureSecret(ctx, other, secret("d")); !errors.Is(err, owned.ErrForeign) {
		t.Errorf("a Secret of another cluster: %v", err)
	}
	if err := h.WriteSecret(ctx, other, false, &corev1.Secret{}, secret("d")); !errors.Is(err, owned.ErrForeign) {
		t.Errorf("a Secret whose name is taken: %v", err)
	}
	for c, want := range map[*v1alpha1.ApiServerCluster]bool{other: false, cluster: true} {
		if removed, err := h.Remove(ctx, c, secret("")); err != nil || removed != want {
			t.Errorf("removed %t, %v", removed, err)
		}
	}
	if removed, err := h.Remove(ctx, cluster, secret("")); err != nil || removed {
		t.Errorf("removed a Secret that does not exist: %v", err)
	}
}

// TestTakenNames checks what creating an object with a taken name returns.
func TestTakenNames(t *testing.T) {
	cluster := ownedtest.NewCluster()
	for name, test := range map[string]struct {
		existing func(*corev1.PersistentVolumeClaim)
		want     error
		events   int
	}{
		"of another owner": {func(c *corev1.PersistentVolumeClaim) { c.OwnerReferences = nil }, owned.ErrForeign, 0},
		"already created":  {func(*corev1.PersistentVolumeClaim) {}, owned.ErrStale, 0},
		"without labels":   {func(c *corev1.PersistentVolumeClaim) { c.Labels = nil }, owned.ErrStale, 1},
		"being deleted": {func(c *corev1.PersistentVolumeClaim) {
			c.Finalizers, c.DeletionTimestamp = []string{"f/f"}, &metav1.Time{Time: ownedtest.Now()}
		}, owned.ErrStale, 0},
		"of a deleted one": {func(c *corev1.PersistentVolumeClaim) {
			c.OwnerReferences = nil
			c.Labels[desired.RetainedLabel] = "former"
		}, owned.ErrForeign, 0},
	} {
		t.Run(name, func(t *testing.T) {
			existing := desired.Claim(cluster, "demo-0")
			existing.OwnerReferences = []metav1.OwnerReference{
				*metav1.NewControllerRef(cluster, v1alpha1.GroupVersion.WithKind("ApiServerCluster")),
			}
			test.existing(existing)
			h := ownedtest.NewHost(t, existing)
			err := h.Create(t.Context(), cluster, desired.Claim(cluster, "demo-0"))
			if !errors.Is(err, test.want) || owned.Stale(err) != errors.Is(test.want, owned.ErrStale) {
				t.Errorf("error %v", err)
			}
			if events := h.Events(); len(events) != test.events {
				t.Errorf("events %q", events)
			}
			h.Read("demo-0", existing)
			if test.events > 0 && existing.Labels[desired.ClusterLabel] != "demo" {
				t.Errorf("labels %v", existing.Labels)
			}
		})
	}
}

// TestRelabel checks that pods get the label of their role back, and that other kinds and labeled pods are not changed.
func TestRelabel(t *testing.T) {
	cluster := ownedtest.NewCluster()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "demo-0"}}
	h := ownedtest.NewHost(t, pod, secret(""))
	h.Must(h.Relabel(t.Context(), cluster, secret("")))
	for range 2 {
		h.Read("demo-0", pod)
		h.Must(h.Relabel(t.Context(), cluster, pod))
	}
	if events := h.Events(); len(events) != 1 || pod.Labels[desired.RoleLabel] != desired.RoleServer {
		t.Errorf("events %q, labels %v", events, pod.Labels)
	}
}

// TestClaims checks that durable objects have no owner reference while a cluster retains its data, and that a claim is
// written only if it differs.
func TestClaims(t *testing.T) {
	h := ownedtest.NewHost(t)
	retaining := ownedtest.NewCluster(func(c *v1alpha1.ApiServerCluster) { c.Spec.Deletion.Policy = v1alpha1.RetainData })
	claim := desired.Claim(retaining, "demo-0")
	h.Must(h.Create(t.Context(), retaining, claim))
	if len(claim.OwnerReferences) != 0 || !desired.Owns(retaining, claim) {
		t.Errorf("owners %v", claim.OwnerReferences)
	}
	h.Refuse = func(string) error { return ownedtest.ErrUnavailable }
	h.Must(h.PatchClaim(t.Context(), claim, claim.DeepCopy()))
	after := claim.DeepCopy()
	after.Annotations = map[string]string{"a": "b"}
	if err := h.PatchClaim(t.Context(), claim, after); !errors.Is(err, ownedtest.ErrUnavailable) {
		t.Errorf("a failed patch: %v", err)
	}
	h.Refuse = nil
	h.Must(h.PatchClaim(t.Context(), claim, after.DeepCopy()))
	if err := h.PatchClaim(t.Context(), claim, after); !apierrors.IsConflict(err) && !owned.Stale(err) {
		t.Errorf("a patch of an outdated claim: %v", err)
	}
}

// TestEvents checks that long messages are shortened and that warnings are marked.
func TestEvents(t *testing.T) {
	h := ownedtest.NewHost(t)
	h.Event(ownedtest.NewCluster(), owned.Event{Reason: "A", Message: strings.Repeat("x", 2000)})
	h.Event(ownedtest.NewCluster(), owned.Event{
		Warning: true, Reason: "B", Related: owned.Reference("Secret", secret("")), Message: "m",
	})
	h.Event(ownedtest.NewCluster(), owned.Event{Reason: "C", Message: "x" + strings.Repeat("ü", 1000)})
	if got := h.Events(); len(got[0]) != len("Normal A: ")+1000 || got[1] != "Warning B: m" ||
		got[2] != "Normal C: x"+strings.Repeat("ü", 499) { // the limit is within a character
		t.Errorf("events %q", got)
	}
}

// TestFailedRequests lets each request fail with which objects are created, updated and deleted.
func TestFailedRequests(t *testing.T) {
	cluster := ownedtest.NewCluster()
	ownedtest.FailEach(t, func(
		t *testing.T,
	) *ownedtest.Host {
		return ownedtest.NewHost(t)
	}, func(h *ownedtest.Host) error {
		_, err := h.Remove(t.Context(), cluster, secret(""))
		return errors.Join(err, h.EnsureSecret(t.Context(), cluster, secret("a")))
	})
	existing := func(t *testing.T) *ownedtest.Host {
		h := ownedtest.NewHost(t)
		h.Must(h.EnsureSecret(t.Context(), cluster, secret("a")))
		return h
	}
	ownedtest.FailEach(t, existing, func(h *ownedtest.Host) error {
		_, err := h.Remove(t.Context(), cluster, secret(""))
		return err
	})
	h := existing(t)
	h.Refuse = func(request string) error {
		if strings.HasPrefix(request, "get") {
			return ownedtest.ErrUnavailable
		}
		return nil
	}
	if err := h.Create(t.Context(), cluster, secret("a")); !errors.Is(err, ownedtest.ErrUnavailable) {
		t.Errorf("a taken name that cannot be read: %v", err)
	}
}

// TestLabeled checks the objects that belong to a cluster by their labels.
func TestLabeled(t *testing.T) {
	own := labels.Set{"cluster": "demo"}
	named := func(name string) *corev1.ConfigMap {
		return &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: own}, Data: map[string]string{"a": "b"},
		}
	}
	foreign := named("foreign")
	foreign.Labels = nil
	h := ownedtest.NewHost(t, foreign, named("former"))
	l := owned.Labeled{API: h.Client, Selector: own}
	ensure := func(name string) (owned.Change, error) {
		current := &corev1.ConfigMap{}
		return l.Ensure(t.Context(), named(name), current, func() { current.Data = named(name).Data })
	}
	for _, want := range []owned.Change{owned.Created, owned.Unchanged} {
		if got, err := ensure("x"); got != want || err != nil {
			t.Errorf("change %d, %v, want %d", got, err, want)
		}
	}
	ownedtest.Change(h, "x", &corev1.ConfigMap{}, func(c *corev1.ConfigMap) { c.Data = nil })
	if got, err := ensure("x"); got != owned.Updated || err != nil {
		t.Errorf("change %d, %v", got, err)
	}
	if _, err := ensure("foreign"); !errors.Is(err, owned.ErrForeign) {
		t.Errorf("an object of others: %v", err)
	}
	deleted, err := l.Prune(t.Context(), map[client.ObjectKey]bool{{Namespace: "ns", Name: "x"}: true},
		&corev1.ConfigMapList{})
	if err != nil || len(deleted) != 1 || deleted[0].GetName() != "former" {
		t.Errorf("deleted %v, %v", deleted, err)
	}
	slice := func(kind discoveryv1.AddressType, address string) *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s", Labels: own}, AddressType: kind,
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{address}}},
		}
	}
	for _, wanted := range []*discoveryv1.EndpointSlice{
		slice(discoveryv1.AddressTypeIPv4, "10.0.0.1"), slice(discoveryv1.AddressTypeIPv4, "10.0.0.2"),
		slice(discoveryv1.AddressTypeIPv6, "fd00::1"),
	} {
		h.Must(l.EnsureSlice(t.Context(), wanted.DeepCopy()))
		stored := &discoveryv1.EndpointSlice{}
		if h.Read("s", stored); stored.AddressType != wanted.AddressType ||
			stored.Endpoints[0].Addresses[0] != wanted.Endpoints[0].Addresses[0] {
			t.Errorf("stored %+v", stored)
		}
	}
	for _, failing := range []string{"get", "list", "create", "update", "delete"} {
		h.Refuse = func(request string) error {
			if strings.HasPrefix(request, failing) {
				return apierrors.NewServerTimeout(schema.GroupResource{}, failing, 1)
			}
			return nil
		}
		h.Must(client.IgnoreAlreadyExists(h.API.Create(t.Context(), named("x"))))
		ownedtest.Change(h, "x", &corev1.ConfigMap{}, func(c *corev1.ConfigMap) { c.Data = map[string]string{failing: ""} })
		_, existing := ensure("x")
		_, missing := ensure("new-" + failing)
		sliceErr := l.EnsureSlice(t.Context(), slice(discoveryv1.AddressTypeFQDN, "example.org"))
		_, pruneErr := l.Prune(t.Context(), nil, &corev1.ConfigMapList{})
		if errors.Join(existing, missing, sliceErr, pruneErr) == nil {
			t.Errorf("the error of the verb %s is not returned", failing)
		}
		h.Refuse = nil
	}
}
