package operator

import (
	"net"
	"slices"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/test/permissions"
	"quorate.dev/test/upstream"
)

// freeAddress returns an unused local address.
func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	return listener.Addr().String()
}

// TestNamespacedInstall runs the operator with manifests/install-namespaced.yaml, which grants no permissions in other
// namespaces.
func TestNamespacedInstall(t *testing.T) {
	upstream.NeedsTime(t)
	address := freeAddress(t)
	file, flags := audit(t)
	e := startServer(t, "../config/crd", "quorate-clusters", flags...)
	e.install("../manifests/install-namespaced.yaml")
	e.operate([]string{
		"--namespaces=quorate-clusters", "--pod-namespace=quorate-system", "--metrics-bind-address=" + address,
	})
	unwatched := &v1alpha1.ApiServerCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "demo"}}
	if err := e.client.Create(t.Context(), unwatched); err != nil {
		t.Fatal(err)
	}
	if err := e.create("demo", v1alpha1.ApiServerClusterSpec{Replicas: ptr.To[int32](1)}); err != nil {
		t.Fatal(err)
	}
	e.await("demo", "bootstrap one replica", settled(1, 1))
	if err := e.client.Get(t.Context(), client.ObjectKeyFromObject(unwatched), unwatched); err != nil {
		t.Fatal(err)
	}
	if len(unwatched.Finalizers) > 0 || len(unwatched.Status.Conditions) > 0 {
		t.Errorf("a cluster in another namespace was reconciled: %+v", unwatched)
	}
	e.checkPermissions()
	e.checkNetworkPolicies()
	e.checkMetrics(address)
	e.checkCertificate()
	e.removeAll()
	permissions.Check(t, file)
}

// checkPermissions checks the operator's permissions in its namespaces and in others.
func (e *environment) checkPermissions() {
	e.t.Helper()
	for _, resource := range []string{"secrets", "pods", "services", "persistentvolumeclaims"} {
		for _, verb := range []string{"get", "list", "watch", "create", "update", "patch", "delete"} {
			for _, namespace := range []string{"", "default", "kube-system"} {
				if e.allowed(authorizationv1.ResourceAttributes{Verb: verb, Resource: resource, Namespace: namespace}) {
					e.t.Errorf("the operator can %s %s in namespace %q", verb, resource, namespace)
				}
			}
		}
		if !e.allowed(authorizationv1.ResourceAttributes{Verb: "create", Resource: resource, Namespace: "quorate-clusters"}) {
			e.t.Errorf("the operator cannot create %s for its clusters", resource)
		}
	}
	for name, want := range map[string]bool{metricsName: true, "": false, "other": false} {
		if e.allowed(
			authorizationv1.ResourceAttributes{Verb: "get", Resource: "secrets", Namespace: "quorate-system", Name: name},
		) != want {
			e.t.Errorf("the operator can get Secret %q in its namespace: %v", name, !want)
		}
	}
}

func (e *environment) allowed(attributes authorizationv1.ResourceAttributes) bool {
	e.t.Helper()
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: operatorUser, Groups: []string{
			"system:serviceaccounts", "system:serviceaccounts:quorate-system", "system:authenticated",
		},
		ResourceAttributes: &attributes,
	}}
	if err := e.client.Create(e.t.Context(), review); err != nil {
		e.t.Fatal(err)
	}
	return review.Status.Allowed
}

// checkNetworkPolicies disables and enables network policies.
func (e *environment) checkNetworkPolicies() {
	e.t.Helper()
	members := client.ObjectKey{Namespace: e.namespace, Name: "demo-members"}
	var policy networkingv1.NetworkPolicy
	if err := e.client.Get(e.t.Context(), members, &policy); err != nil {
		e.t.Fatal(err)
	}
	admitted := slices.ContainsFunc(policy.Spec.Ingress[1].From, func(p networkingv1.NetworkPolicyPeer) bool {
		return p.NamespaceSelector != nil &&
			p.NamespaceSelector.MatchLabels["kubernetes.io/metadata.name"] == "quorate-system"
	})
	if !admitted {
		e.t.Errorf("no rule allows connections from the operator: %+v", policy.Spec)
	}
	before := e.pods()
	for _, mode := range []v1alpha1.NetworkPoliciesMode{
		v1alpha1.NetworkPoliciesDisabled, v1alpha1.NetworkPoliciesEnabled,
	} {
		e.change("demo", func(spec *v1alpha1.ApiServerClusterSpec) { spec.NetworkPolicies = mode })
		e.await("demo", "network policies "+string(mode), func(cluster *v1alpha1.ApiServerCluster) bool {
			err := e.client.Get(e.t.Context(), members, &policy)
			return settled(1, 1)(cluster) && apierrors.IsNotFound(err) == (mode == v1alpha1.NetworkPoliciesDisabled)
		})
	}
	if after := e.pods(); len(after) != 1 || after[0].UID != before[0].UID {
		e.t.Errorf("changing network policies replaced a pod")
	}
}
