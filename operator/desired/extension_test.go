package desired

import (
	"slices"
	"strings"
	"testing"

	"quorate.dev/operator/api/v1alpha1"
)

func extend(s *v1alpha1.ApiServerClusterSpec) {
	s.Mode = v1alpha1.ModeExtension
	s.Extension.Groups = []v1alpha1.ExtensionGroup{
		{Name: "reports.example.com", Versions: []string{"v1", "v1beta1"}, GroupPriorityMinimum: 500},
		{Name: "audits.example.com", Versions: []string{"v1alpha1"}},
	}
}

// TestHostObjects compares the objects of a cluster in mode Extension in its host with a golden file.
func TestHostObjects(t *testing.T) {
	cluster := demo(extend)
	kubeconfig, err := HostKubeconfig(cluster, "https://192.0.2.1:6443", []byte("CA"))
	if err != nil {
		t.Fatal(err)
	}
	objects := []any{HostServiceAccount(cluster), HostRoleBinding(cluster)}
	for _, binding := range HostClusterRoleBindings(cluster) {
		objects = append(objects, binding)
	}
	for _, service := range HostAPIServices(cluster, []byte("CA")) {
		objects = append(objects, service)
	}
	golden(t, "extension.yaml", append(objects, string(kubeconfig.Data[KubeconfigKey]))...)
}

// TestExtensionReplica compares the arguments and credentials of a replica in mode Extension.
func TestExtensionReplica(t *testing.T) {
	pod, err := Pod(demo(extend), "quorate:1", Replica{Name: "demo-0", Member: true, InitialCluster: InitialCluster{
		PeerURLs: map[string]string{"demo-0": "https://a:2380"},
	}}, "hash")
	if err != nil {
		t.Fatal(err)
	}
	if pod.Spec.ServiceAccountName != "demo" || *pod.Spec.AutomountServiceAccountToken {
		t.Errorf("got service account %q, automount %v", pod.Spec.ServiceAccountName, *pod.Spec.AutomountServiceAccountToken)
	}
	golden(t, "extension-replica.yaml", pod.Spec.Containers[0].Args, pod.Spec.Volumes[0].Projected.Sources)
}

func TestValidateExtension(t *testing.T) {
	for want, edit := range map[string]func(*v1alpha1.ApiServerClusterSpec){
		"":                               func(*v1alpha1.ApiServerClusterSpec) {},
		"needs spec.mode Extension":      func(s *v1alpha1.ApiServerClusterSpec) { s.Mode = "" },
		"must be Cluster or Extension":   func(s *v1alpha1.ApiServerClusterSpec) { s.Mode = "Other" },
		"needs spec.extension.groups":    func(s *v1alpha1.ApiServerClusterSpec) { s.Extension.Groups = nil },
		"a DNS subdomain with a dot":     func(s *v1alpha1.ApiServerClusterSpec) { s.Extension.Groups[0].Name = "apps" },
		"reports.example.com needs vers": func(s *v1alpha1.ApiServerClusterSpec) { s.Extension.Groups[0].Versions = nil },
		"always served, for the adminis": func(s *v1alpha1.ApiServerClusterSpec) {
			s.Extension.Groups[0].Name = "apiextensions.k8s.io"
		},
		"which serves no APIServices": func(s *v1alpha1.ApiServerClusterSpec) {
			s.Aggregation.APIServices = []v1alpha1.AggregatedAPIService{ofService()}
		},
		"cannot be used with --extension-groups": func(s *v1alpha1.ApiServerClusterSpec) {
			s.ExtraArgs = map[string]string{"event-ttl": "2h"}
		},
	} {
		err := Validate(demo(func(s *v1alpha1.ApiServerClusterSpec) {
			extend(s)
			edit(s)
		}), nil)
		if (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
}

// TestExtensionHashes checks that changes of priorities and versions restart no replica.
func TestExtensionHashes(t *testing.T) {
	before := HashesOf(demo(extend), "quorate:1", Configuration{})
	same := HashesOf(demo(func(s *v1alpha1.ApiServerClusterSpec) {
		extend(s)
		slices.Reverse(s.Extension.Groups)
		s.Extension.Groups[0].Versions = []string{"v2"}
	}), "quorate:1", Configuration{})
	other := HashesOf(demo(func(s *v1alpha1.ApiServerClusterSpec) {
		extend(s)
		s.Extension.Groups = s.Extension.Groups[:1]
	}), "quorate:1", Configuration{})
	if before != same || before == other {
		t.Errorf("got hashes %v, %v with other versions and %v without a group", before, same, other)
	}
}
