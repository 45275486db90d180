package network

import (
	"errors"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/etcd"
	"quorate.dev/operator/observed"
	"quorate.dev/operator/reconcile/owned"
	"quorate.dev/operator/reconcile/owned/ownedtest"
)

// TestHeadlessServiceWithAddress restores a Service that has had another type for a while and got a cluster IP, which
// is immutable.
func TestHeadlessServiceWithAddress(t *testing.T) {
	h, cluster, service := ownedtest.NewHost(t), ownedtest.NewCluster(), &corev1.Service{}
	for _, address := range []string{corev1.ClusterIPNone, "", "10.0.0.7"} {
		if h.Exists("demo-members", service) {
			ownedtest.Change(h, "demo-members", service, func(s *corev1.Service) { s.Spec.ClusterIP = address })
		}
		_, err := EnsureServices(t.Context(), h.Objects, cluster)
		h.Must(err)
		if h.Read("demo-members", service); service.Spec.ClusterIP != corev1.ClusterIPNone {
			t.Errorf("%q was not restored: %q", address, service.Spec.ClusterIP)
		}
	}
}

// TestEndpoint checks that clients use the address of the load balancer once it has one, and that the serving
// certificate has to contain all addresses.
func TestEndpoint(t *testing.T) {
	h := ownedtest.NewHost(t)
	cluster := ownedtest.NewCluster(func(c *v1alpha1.ApiServerCluster) {
		c.Spec.Service.Type, c.Spec.Service.Annotations =
			corev1.ServiceTypeLoadBalancer, map[string]string{"internal": "true"}
	})
	for _, test := range []struct {
		ingress   corev1.LoadBalancerIngress
		endpoint  string
		addresses []string
	}{
		{corev1.LoadBalancerIngress{}, "https://demo.ns.svc:6443", []string{"10.0.0.1", "10.0.0.1"}},
		{
			corev1.LoadBalancerIngress{IP: "192.0.2.1"}, "https://192.0.2.1:6443", []string{"10.0.0.1", "10.0.0.1", "192.0.2.1"},
		},
		{
			corev1.LoadBalancerIngress{Hostname: "api.example.org"}, "https://api.example.org:6443", []string{
				"10.0.0.1", "10.0.0.1", "api.example.org",
			},
		},
	} {
		if service := (&corev1.Service{}); h.Exists("demo", service) {
			ownedtest.Change(h, "demo", service, func(s *corev1.Service) {
				s.Annotations = nil
				s.Spec.ClusterIP, s.Spec.ClusterIPs = "10.0.0.1", []string{"10.0.0.1"}
				s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{test.ingress}
			})
		} else {
			test.addresses = nil
		}
		services, err := EnsureServices(t.Context(), h.Objects, cluster)
		h.Must(err)
		if services.Endpoint != test.endpoint || !slices.Equal(Addresses(services.Clients), test.addresses) {
			t.Errorf("endpoint %s, addresses %v, want %+v", services.Endpoint, Addresses(services.Clients), test)
		}
		if services.Clients.Annotations["internal"] != "true" {
			t.Errorf("annotations %v", services.Clients.Annotations)
		}
	}
	if Addresses(nil) != nil {
		t.Error("an unknown Service has addresses")
	}
}

// TestPolicies checks that the policies follow the spec, and that a policy of another owner is neither changed nor
// deleted.
func TestPolicies(t *testing.T) {
	foreign := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "demo-api"}}
	h, cluster := ownedtest.NewHost(t), ownedtest.NewCluster()
	ensure := func() error { return EnsurePolicies(t.Context(), h.Objects, cluster, "operators") }
	h.Must(ensure())
	names := h.Names()
	if len(names) == 0 {
		t.Fatal("no policies")
	}
	name := names[0][len("NetworkPolicy "):]
	policy := &networkingv1.NetworkPolicy{}
	ownedtest.Change(h, name, policy, func(p *networkingv1.NetworkPolicy) { p.Spec.Ingress = nil })
	h.Must(ensure())
	if h.Read(name, policy); len(policy.Spec.Ingress) == 0 {
		t.Error("an edited policy was not restored")
	}
	cluster.Spec.NetworkPolicies = v1alpha1.NetworkPoliciesDisabled
	h.Must(ensure())
	if left := h.Names(); len(left) != 0 {
		t.Errorf("left %v", left)
	}
	foreign.Name = name
	h.CreateAll(foreign)
	h.Must(ensure())
	cluster.Spec.NetworkPolicies = v1alpha1.NetworkPoliciesEnabled
	if err := ensure(); !errors.Is(err, owned.ErrForeign) || !h.Exists(name, policy) {
		t.Errorf("a policy of another owner: %v", err)
	}
}

// TestBudget checks the number of pods that must stay available, and that a cluster of which every pod may stop has no
// budget.
func TestBudget(t *testing.T) {
	h, cluster, budget :=
		ownedtest.NewHost(t), ownedtest.NewCluster(ownedtest.Bootstrapped), &policyv1.PodDisruptionBudget{}
	one := int32(1)
	voters := []etcd.Member{{Name: "demo-0"}, {Name: "demo-1"}, {Name: "demo-2"}}
	for _, test := range []struct {
		replicas *int32
		state    *observed.State
		exists   bool
	}{
		{nil, &observed.State{Members: voters}, true},
		{nil, &observed.State{EtcdErr: etcd.ErrUnreachable}, true},
		{&one, &observed.State{Members: voters[:1]}, false},
		{&one, &observed.State{Members: voters[:1]}, false},
	} {
		cluster.Spec.Replicas, test.state.Cluster = test.replicas, cluster
		h.Must(EnsureBudget(t.Context(), h.Objects, test.state))
		if got := h.Exists("demo", budget); got != test.exists {
			t.Errorf("%+v: budget %t", test, got)
		}
	}
}

// TestForeignBudget checks that a budget of another owner with the cluster's name is an error only if the cluster needs
// a budget.
func TestForeignBudget(t *testing.T) {
	h := ownedtest.NewHost(t, &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "demo"}})
	one, budget := int32(1), &policyv1.PodDisruptionBudget{}
	cluster := ownedtest.NewCluster(ownedtest.Bootstrapped, func(c *v1alpha1.ApiServerCluster) { c.Spec.Replicas = &one })
	state := &observed.State{Cluster: cluster, Members: []etcd.Member{{Name: "demo-0"}}}
	if err := EnsureBudget(t.Context(), h.Objects, state); err != nil || !h.Exists("demo", budget) {
		t.Errorf("a budget that the cluster does not need: %v", err)
	}
	cluster.Spec.Replicas = nil
	if err := EnsureBudget(t.Context(), h.Objects, state); !errors.Is(err, owned.ErrForeign) || !h.Exists("demo", budget) {
		t.Errorf("a budget that the cluster needs: %v", err)
	}
}

// TestFailedRequests lets each request of the steps fail, while objects are created, restored and deleted.
func TestFailedRequests(t *testing.T) {
	step := func(cluster *v1alpha1.ApiServerCluster) func(*ownedtest.Host) error {
		return func(h *ownedtest.Host) error {
			_, err := EnsureServices(t.Context(), h.Objects, cluster)
			return errors.Join(err, EnsurePolicies(t.Context(), h.Objects, cluster, ""),
				EnsureBudget(t.Context(), h.Objects, &observed.State{Cluster: cluster}))
		}
	}
	ownedtest.FailEach(t, func(t *testing.T) *ownedtest.Host { return ownedtest.NewHost(t) }, step(ownedtest.NewCluster()))
	one := int32(1)
	reduced := ownedtest.NewCluster(func(c *v1alpha1.ApiServerCluster) {
		c.Spec.Replicas, c.Spec.NetworkPolicies = &one, v1alpha1.NetworkPoliciesDisabled
	})
	ownedtest.FailEach(t, func(t *testing.T) *ownedtest.Host {
		h := ownedtest.NewHost(t)
		h.Must(step(ownedtest.NewCluster())(h))
		ownedtest.Change(h, "demo-members", &corev1.Service{}, func(s *corev1.Service) { s.Spec.ClusterIP = "10.0.0.7" })
		return h
	}, step(reduced))
}
