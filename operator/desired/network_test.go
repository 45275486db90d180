package desired

import (
	"slices"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"quorate.dev/operator/api/v1alpha1"
)

// peer is a pod or, if it has no labels, a host outside of the cluster.
type peer struct {
	namespace string
	labels    labels.Set
}

func matches(t *testing.T, selector *metav1.LabelSelector, set labels.Set) bool {
	t.Helper()
	parsed, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		t.Fatal(err)
	}
	return parsed.Matches(set)
}

// from reports whether a policy peer selects a pod.
func from(t *testing.T, rule networkingv1.NetworkPolicyPeer, namespace string, p peer) bool {
	t.Helper()
	switch {
	case p.labels == nil:
		return false
	case rule.NamespaceSelector == nil && p.namespace != namespace:
		return false
	case rule.NamespaceSelector != nil &&
		!matches(t, rule.NamespaceSelector, labels.Set{"kubernetes.io/metadata.name": p.namespace}):
		return false
	}
	return matches(t, rule.PodSelector, p.labels)
}

// connects evaluates policies with the semantics of the NetworkPolicy API. A pod that no policy selects accepts all
// connections; a selected pod accepts only connections that a policy permits.
func connects(t *testing.T, policies []*networkingv1.NetworkPolicy, p peer, to labels.Set, port int32) bool {
	t.Helper()
	selected := false
	for _, policy := range policies {
		if !matches(t, &policy.Spec.PodSelector, to) {
			continue
		}
		selected = true
		for _, rule := range policy.Spec.Ingress {
			allowed := len(rule.From) == 0 || slices.ContainsFunc(rule.From, func(r networkingv1.NetworkPolicyPeer) bool {
				return from(t, r, policy.Namespace, p)
			})
			if rule.Ports[0].Port.IntVal == port && allowed {
				return true
			}
		}
	}
	return !selected
}

func TestNetworkPoliciesAllowWhatIsNeeded(t *testing.T) {
	cluster := demo(nil)
	podLabels := func(replica string) labels.Set {
		pod, err := Pod(cluster, "quorate:1", replicas[replica].replica, "")
		if err != nil {
			t.Fatal(err)
		}
		return pod.Labels
	}
	member, server := podLabels("member"), podLabels("server")
	other := labels.Merge(member, labels.Set{ClusterLabel: "other"})
	operator := labels.Set{NameLabel: OperatorName}
	peers := map[string]peer{
		"member": {"ns", member}, "server": {"ns", server}, "other": {"ns", other}, "outside": {},
		"stranger": {"ns", labels.Set{"app": "x"}}, "elsewhere": {"elsewhere", member},
		"operator": {"quorate-system", operator}, "impostor": {"ns", operator},
	}
	everyone := []string{"member", "server", "other", "outside", "stranger", "elsewhere", "operator", "impostor"}
	for _, c := range []struct {
		name      string
		operator  string
		to        labels.Set
		port      int32
		connected []string
	}{
		{"API of a member", "quorate-system", member, SecurePort, everyone},
		{"API of a server", "quorate-system", server, SecurePort, everyone},
		{"peers", "quorate-system", member, PeerPort, []string{"member"}},
		{"peers, operator unknown", "", member, PeerPort, []string{"member"}},
		{"etcd clients", "quorate-system", member, ClientPort, []string{"server", "operator"}},
		{"etcd clients, operator unknown", "", member, ClientPort, everyone},
		{"anything else", "quorate-system", member, 8080, nil},
		{"anything else of a server", "", server, ClientPort, nil},
	} {
		policies := NetworkPolicies(cluster, c.operator)
		for _, name := range everyone {
			if got, want := connects(t, policies, peers[name], c.to, c.port), slices.Contains(c.connected, name); got != want {
				t.Errorf("%s: connection from %s: %v", c.name, name, got)
			}
		}
	}
}

func TestNetworkPoliciesOfASpec(t *testing.T) {
	names := NetworkPolicyNames(demo(nil))
	for name, c := range map[string]struct {
		edit func(*v1alpha1.ApiServerClusterSpec)
		want []string
	}{
		"embedded": {nil, []string{"demo", "demo-members"}},
		"external": {external, []string{"demo"}},
		"disabled": {func(s *v1alpha1.ApiServerClusterSpec) { s.NetworkPolicies = v1alpha1.NetworkPoliciesDisabled }, nil},
	} {
		var got []string
		for _, policy := range NetworkPolicies(demo(c.edit), "") {
			got = append(got, policy.Name)
			if !slices.Contains(names, policy.Name) {
				t.Errorf("%s: policy %s is not in NetworkPolicyNames()", name, policy.Name)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: policies %q, want %q", name, got, c.want)
		}
	}
}
