package desired

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/pki"
)

func joinable(s *v1alpha1.ApiServerClusterSpec) {
	s.Companions = v1alpha1.Companions{
		KubeControllerManager: &v1alpha1.Companion{Image: "kcm:1", ExtraArgs: map[string]string{"kube-api-qps": "50"}},
		KubeScheduler:         &v1alpha1.Companion{Image: "scheduler:1", Replicas: ptr.To[int32](1)},
	}
}

func companionCredentials() CompanionCredentials {
	return CompanionCredentials{
		Trusted: []byte("CA"), ServerName: "demo.ns.svc",
		Clients: pki.Bundle{Signer: pki.Authority{Pair: pki.Pair{Certificate: []byte("signer"), Key: []byte("key")}}},
		Keys:    pki.Keys{Signer: pki.Pair{Certificate: []byte("public"), Key: []byte("private")}},
	}
}

// TestCompanions compares the objects of the companions with golden files.
func TestCompanions(t *testing.T) {
	cluster := demo(joinable)
	var objects []any
	for _, companion := range Companions(cluster) {
		files, err := CompanionFiles(cluster, companion, companionCredentials())
		if err != nil {
			t.Fatal(err)
		}
		texts := map[string]string{}
		for name, data := range files.Data {
			texts[name] = string(data)
		}
		objects = append(objects, CompanionDeployment(cluster, companion, companionCredentials()), texts)
	}
	golden(t, "companions.yaml", objects...)
}

// TestKubernetesAddress checks that the serving certificate is valid for the IP address of the Service
// default/kubernetes.
func TestKubernetesAddress(t *testing.T) {
	for arguments, want := range map[string]string{
		"": "10.0.0.1", "10.96.0.0/12": "10.96.0.1", "fd00:1::/112,10.96.0.0/12": "fd00:1::1", "all": "",
	} {
		cluster := demo(joinable)
		if arguments != "" {
			cluster.Spec.ExtraArgs = map[string]string{"service-cluster-ip-range": arguments}
		}
		leaf := servingLeaf(cluster, nil)
		got := slices.DeleteFunc(leaf.Addresses, net.IP.IsLoopback)
		if text := strings.Trim(fmt.Sprint(got), "[]"); text != want {
			t.Errorf("with --service-cluster-ip-range=%q, the certificate has %s, want %q", arguments, text, want)
		}
	}
	if leaf := servingLeaf(demo(func(*v1alpha1.ApiServerClusterSpec) {}), nil); len(
		slices.DeleteFunc(leaf.Addresses, net.IP.IsLoopback),
	) > 0 {
		t.Errorf("without nodes, the certificate has %s", leaf.Addresses)
	}
}

// TestKubernetesSlices checks the addresses of the Service default/kubernetes. Pods on the cluster's nodes reach the
// API servers only through the load balancer.
func TestKubernetesSlices(t *testing.T) {
	for name, c := range map[string]struct {
		ingress []corev1.LoadBalancerIngress
		want    string
	}{
		"no load balancer yet": {nil, ""},
		"host name":            {[]corev1.LoadBalancerIngress{{Hostname: "lb.example.org"}}, ""},
		"both families": {
			[]corev1.LoadBalancerIngress{
				{IP: "192.0.2.1"}, {IP: "2001:db8::1"}, {Hostname: "lb.example.org"}, {IP: "192.0.2.2"},
			},
			"kubernetes-ipv4 [192.0.2.1] [192.0.2.2] kubernetes-ipv6 [2001:db8::1]",
		},
		"IPv6": {[]corev1.LoadBalancerIngress{{IP: "2001:db8::1"}}, "kubernetes-ipv6 [2001:db8::1]"},
	} {
		service := &corev1.Service{}
		service.Status.LoadBalancer.Ingress = c.ingress
		var got []string
		for _, slice := range KubernetesSlices(demo(joinable), service) {
			got = append(got, slice.Name)
			for _, endpoint := range slice.Endpoints {
				got = append(got, fmt.Sprint(endpoint.Addresses))
			}
			if slice.Namespace != "default" || slice.Labels["kubernetes.io/service-name"] != "kubernetes" ||
				*slice.Ports[0].Port != SecurePort || *slice.Ports[0].Name != "https" {
				t.Errorf("%s: got %+v", name, slice)
			}
		}
		if text := strings.Join(got, " "); text != c.want {
			t.Errorf("%s: got %s, want %s", name, text, c.want)
		}
	}
	if got := KubernetesSlices(demo(joinable), nil); len(got) > 0 {
		t.Errorf("without a Service: got %v", got)
	}
}

// TestNodes compares the objects inside the cluster that nodes need to join with a golden file.
func TestNodes(t *testing.T) {
	cluster := demo(joinable)
	info, err := ClusterInfo(cluster, "https://api.example.org:6443", []byte("CA"))
	if err != nil {
		t.Fatal(err)
	}
	role, binding := ClusterInfoAccess(cluster)
	objects := []any{info, role, binding}
	for _, binding := range NodeBindings(cluster) {
		objects = append(objects, binding)
	}
	golden(t, "nodes.yaml", objects...)
}

// TestCompanionsMountWhatTheyUse checks that the pod of a companion mounts each file in its arguments.
func TestCompanionsMountWhatTheyUse(t *testing.T) {
	cluster := demo(joinable)
	for _, companion := range Companions(cluster) {
		pod := CompanionDeployment(cluster, companion, companionCredentials()).Spec.Template.Spec
		mounted := map[string]bool{}
		for _, source := range pod.Volumes[0].Projected.Sources {
			for _, item := range source.Secret.Items {
				mounted[companionFile(item.Path)] = true
			}
		}
		for _, arg := range pod.Containers[0].Args {
			if _, value, _ := strings.Cut(arg, "="); strings.HasPrefix(value, companionDirectory) && !mounted[value] {
				t.Errorf("%s: %s is not mounted", companion.Name, arg)
			}
		}
	}
}

// TestCompanionRestarts checks which changes restart a companion.
func TestCompanionRestarts(t *testing.T) {
	sum := func(edit func(*v1alpha1.ApiServerCluster, *CompanionCredentials)) string {
		cluster, credentials := demo(joinable), companionCredentials()
		edit(cluster, &credentials)
		deployment := CompanionDeployment(cluster, Companions(cluster)[0], credentials)
		return deployment.Spec.Template.Annotations[CompanionHashAnnotation]
	}
	unchanged := sum(func(*v1alpha1.ApiServerCluster, *CompanionCredentials) {})
	for name, c := range map[string]struct {
		restart bool
		edit    func(*v1alpha1.ApiServerCluster, *CompanionCredentials)
	}{
		"replicas": {false, func(c *v1alpha1.ApiServerCluster, _ *CompanionCredentials) {
			c.Spec.Companions.KubeControllerManager.Replicas = ptr.To[int32](3)
		}},
		"image of the API servers": {
			false, func(c *v1alpha1.ApiServerCluster, _ *CompanionCredentials) { c.Spec.Image = "other" },
		},
		"image": {true, func(c *v1alpha1.ApiServerCluster, _ *CompanionCredentials) {
			c.Spec.Companions.KubeControllerManager.Image = "kcm:2"
		}},
		"trusted authorities": {
			true, func(_ *v1alpha1.ApiServerCluster, c *CompanionCredentials) { c.Trusted = []byte("two") },
		},
		"signer of certificates": {
			true, func(_ *v1alpha1.ApiServerCluster, c *CompanionCredentials) { c.Clients.Signer.Certificate = nil },
		},
		"service-account key": {
			true, func(_ *v1alpha1.ApiServerCluster, c *CompanionCredentials) { c.Keys.Signer.Certificate = nil },
		},
		"next service-account key": {
			false, func(_ *v1alpha1.ApiServerCluster, c *CompanionCredentials) { c.Keys.Next = &pki.Pair{} },
		},
	} {
		if changed := sum(c.edit) != unchanged; changed != c.restart {
			t.Errorf("%s: restart %v, want %v", name, changed, c.restart)
		}
	}
}

// TestControllersRestart checks that companions change the hash of API servers only if they change the pods of API
// servers.
func TestControllersRestart(t *testing.T) {
	plain, with := demo(nil), demo(joinable)
	scheduler := demo(func(s *v1alpha1.ApiServerClusterSpec) {
		s.Companions.KubeScheduler = &v1alpha1.Companion{Image: "s"}
	})
	none := demo(func(s *v1alpha1.ApiServerClusterSpec) { s.Controllers = v1alpha1.ControllersNone })
	sum := func(c *v1alpha1.ApiServerCluster) string { return HashesOf(c, "quorate:1", Configuration{}).Server }
	if sum(plain) != sum(scheduler) || sum(plain) == sum(with) || sum(plain) == sum(none) {
		t.Errorf("got %s without companions, %s with a scheduler, %s with both, %s without controllers",
			sum(plain), sum(scheduler), sum(with), sum(none))
	}
}

func TestValidateCompanions(t *testing.T) {
	manager := func(s *v1alpha1.ApiServerClusterSpec) *v1alpha1.Companion { return s.Companions.KubeControllerManager }
	for want, edit := range map[string]func(*v1alpha1.ApiServerClusterSpec){
		"":                        func(*v1alpha1.ApiServerClusterSpec) {},
		"runs the same":           func(s *v1alpha1.ApiServerClusterSpec) { s.Controllers = v1alpha1.ControllersEmbedded },
		"must be Embedded":        func(s *v1alpha1.ApiServerClusterSpec) { s.Controllers = "Some" },
		"needs an image":          func(s *v1alpha1.ApiServerClusterSpec) { manager(s).Image = "" },
		"with spec.mode Extensio": extend,
		"kubeconfig is set by":    func(s *v1alpha1.ApiServerClusterSpec) { manager(s).ExtraArgs["kubeconfig"] = "/x" },
		"root-ca-file is not ava": func(s *v1alpha1.ApiServerClusterSpec) { manager(s).ExtraArgs["root-ca-file"] = "/x" },
		`dashes: "root_ca_file"`:  func(s *v1alpha1.ApiServerClusterSpec) { manager(s).ExtraArgs["root_ca_file"] = "/x" },
	} {
		err := Validate(demo(func(s *v1alpha1.ApiServerClusterSpec) {
			joinable(s)
			edit(s)
		}), nil)
		if (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
}

// TestCompanionRulesAgree compares the flags of companions that the CRD rejects with the flags that the operator
// rejects.
func TestCompanionRulesAgree(t *testing.T) {
	evaluate := rules(t, "companions", "kubeScheduler", "extraArgs")
	names := append(companionOperatorFlags.UnsortedList(), "kube-api-qps", "controllers",
		"leader-elect", "requestheader-x", "x-file", "x-dir", "x-manifest", "--v", "a_b", "v=1")
	for _, name := range names {
		message, err := evaluate(map[string]any{name: "1"}), companionFlagError(name)
		if (message == "") != (err == nil) {
			t.Errorf("%s: operator rejects with %v, CRD with %q", name, err, message)
		}
	}
}
