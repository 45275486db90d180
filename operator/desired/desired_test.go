package desired

import (
	"net"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"quorate.dev/apiserver/config"
	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/pki"
)

func demo(edit func(*v1alpha1.ApiServerClusterSpec)) *v1alpha1.ApiServerCluster {
	cluster := &v1alpha1.ApiServerCluster{ObjectMeta: metav1.ObjectMeta{Name: "demo", Namespace: "ns", UID: "u"}}
	cluster.Spec.Replicas = ptr.To[int32](3)
	if edit != nil {
		edit(&cluster.Spec)
	}
	return cluster
}

func external(s *v1alpha1.ApiServerClusterSpec) {
	s.Etcd.External = &v1alpha1.ExternalEtcd{
		Endpoints: []string{"https://etcd:2379"}, Prefix: "/x", SecretRef: &corev1.LocalObjectReference{Name: "theirs"},
	}
}

var replicas = map[string]struct {
	cluster *v1alpha1.ApiServerCluster
	replica Replica
}{
	"initial member": {demo(nil), Replica{Name: "demo-0", Member: true, InitialCluster: InitialCluster{
		New: true, PeerURLs: map[string]string{"demo-0": "https://a:2380", "demo-1": "https://b:2380"},
	}}},
	"member": {demo(nil), Replica{Name: "demo-10", Member: true, InitialCluster: InitialCluster{
		PeerURLs: map[string]string{"demo-10": "https://c:2380"},
	}}},
	"server": {demo(nil), Replica{Name: "demo-3", Endpoints: []string{
		"https://demo-0.demo-members.ns.svc:2379", "https://demo-1.demo-members.ns.svc:2379",
	}}},
	"external": {demo(external), Replica{Name: "demo-0"}},
	"with companions": {demo(joinable), Replica{Name: "demo-0", Member: true, InitialCluster: InitialCluster{
		PeerURLs: map[string]string{"demo-0": "https://a:2380"},
	}}},
	"extension": {demo(extend), Replica{Name: "demo-0", Member: true, InitialCluster: InitialCluster{
		PeerURLs: map[string]string{"demo-0": "https://a:2380"},
	}}},
}

// TestArgumentsAreValidAndTheirFilesMounted parses the rendered arguments with the API server's own flags.
func TestArgumentsAreValidAndTheirFilesMounted(t *testing.T) {
	for name, c := range replicas {
		t.Run(name, func(t *testing.T) {
			pod, err := Pod(c.cluster, "quorate:1", c.replica, "hash")
			if err != nil {
				t.Fatal(err)
			}
			container := pod.Spec.Containers[0]
			if container.Args[0] != "apiserver" {
				t.Fatalf("arguments %q", container.Args)
			}
			parsed := config.Default()
			var args []string
			for _, arg := range container.Args[1:] {
				args = append(args, strings.ReplaceAll(arg, podIP, "10.0.0.1"))
			}
			if err := parsed.Flags().Parse(args); err != nil {
				t.Fatal(err)
			}
			if err := parsed.Validate(); err != nil {
				t.Error(err)
			}
			files := mountedFiles(pod)
			for _, arg := range args {
				if _, file, ok := strings.Cut(arg, certificateDirectory+"/"); ok && !slices.Contains(files, file) {
					t.Errorf("file %s is not mounted; mounted files: %q", file, files)
				}
			}
		})
	}
}

func mountedFiles(pod *corev1.Pod) []string {
	var files []string
	for _, source := range pod.Spec.Volumes[0].Projected.Sources {
		if token := source.ServiceAccountToken; token != nil {
			files = append(files, token.Path)
			continue
		}
		for _, item := range source.Secret.Items {
			files = append(files, item.Path)
		}
	}
	return files
}

func TestNoPodMountsTheKeyOfAnAuthority(t *testing.T) {
	for name, c := range replicas {
		pod, err := Pod(c.cluster, "quorate:1", c.replica, "hash")
		if err != nil {
			t.Fatal(err)
		}
		for _, source := range pod.Spec.Volumes[0].Projected.Sources {
			if source.Secret == nil {
				continue
			}
			for _, item := range source.Secret.Items {
				if strings.HasSuffix(source.Secret.Name, "-ca") && item.Key != corev1.TLSCertKey {
					t.Errorf("%s mounts %s of %s", name, item.Key, source.Secret.Name)
				}
			}
		}
	}
}

func TestInitialCluster(t *testing.T) {
	for name, want := range map[string][]string{
		"initial member": {
			"--etcd-initial-cluster=demo-0=https://a:2380,demo-1=https://b:2380", "--etcd-initial-cluster-token=ns-demo-u",
		},
		"member": {
			"--etcd-initial-cluster=demo-10=https://c:2380", "--etcd-initial-cluster-state=existing",
			"--etcd-listen-peer-urls=https://$(POD_IP):2380",
		},
		"server": {"--etcd-servers=https://demo-0.demo-members.ns.svc:2379,https://demo-1.demo-members.ns.svc:2379"},
	} {
		pod, err := Pod(replicas[name].cluster, "quorate:1", replicas[name].replica, "")
		if err != nil {
			t.Fatal(err)
		}
		for _, arg := range want {
			if !slices.Contains(pod.Spec.Containers[0].Args, arg) {
				t.Errorf("%s has no %s: %q", name, arg, pod.Spec.Containers[0].Args)
			}
		}
	}
}

func TestHashesDependOnlyOnTheSpec(t *testing.T) {
	base := HashesOf(demo(nil), "quorate:1", Configuration{})
	for name, c := range map[string]struct {
		edit         func(*v1alpha1.ApiServerClusterSpec)
		server, etcd bool // whether the hash changes
	}{
		"nothing":  {nil, false, false},
		"replicas": {func(s *v1alpha1.ApiServerClusterSpec) { s.Replicas = ptr.To[int32](5) }, false, false},
		"names":    {func(s *v1alpha1.ApiServerClusterSpec) { s.ExtraSANs = []string{"x"} }, false, false},
		"service": {
			func(s *v1alpha1.ApiServerClusterSpec) { s.Service.Type = corev1.ServiceTypeNodePort }, false, false,
		},
		"server flag": {func(s *v1alpha1.ApiServerClusterSpec) { s.ExtraArgs = map[string]string{"v": "4"} }, true, false},
		"member flag": {
			func(s *v1alpha1.ApiServerClusterSpec) { s.ExtraArgs = map[string]string{"etcd-snapshot-count": "9"} }, false, true,
		},
		"a larger disk": {func(s *v1alpha1.ApiServerClusterSpec) { s.Storage.Size = resource.MustParse("9Gi") }, false, true},
		"resources": {func(s *v1alpha1.ApiServerClusterSpec) {
			s.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
		}, true, false},
	} {
		got := HashesOf(demo(c.edit), "quorate:1", Configuration{})
		if (got.Server != base.Server) != c.server || (got.Etcd != base.Etcd) != c.etcd {
			t.Errorf("change of %s: hashes %+v, before %+v", name, got, base)
		}
	}
	// An upgrade to an operator with other hashes restarts every API server.
	if base.Server != "bcb102b0bc23d9c4" || base.Etcd != "17a28f69dc99966f" {
		t.Errorf("hashes of an unchanged spec: %+v", base)
	}
}

func TestServersAreOutdatedWithoutTheirMembers(t *testing.T) {
	cluster := demo(nil)
	pod, err := Pod(cluster, "quorate:1", replicas["server"].replica, "")
	if err != nil {
		t.Fatal(err)
	}
	hashes := HashesOf(cluster, "quorate:1", Configuration{})
	for voters, want := range map[string]bool{
		"demo-0,demo-1": false, "demo-0,demo-5": false, "demo-0,demo-5,demo-6": true, "demo-5": true,
	} {
		if got := Outdated(pod, hashes, strings.Split(voters, ",")); got != want {
			t.Errorf("Outdated() of a server of demo-0 and demo-1 with voters %s: %v, want %v", voters, got, want)
		}
	}
}

func TestPodsAreRestricted(t *testing.T) {
	for name, c := range replicas {
		pod, err := Pod(c.cluster, "quorate:1", c.replica, "")
		if err != nil {
			t.Fatal(err)
		}
		p, s := pod.Spec.SecurityContext, pod.Spec.Containers[0].SecurityContext
		if !*p.RunAsNonRoot || p.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault ||
			*s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem ||
			!slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) || *pod.Spec.AutomountServiceAccountToken {
			t.Errorf("%s: pod and container security contexts %+v, %+v", name, p, s)
		}
	}
}

// TestImagesAreNotPulledAgain checks that the tag latest does not imply the pull policy Always, unlike in Kubernetes.
func TestImagesAreNotPulledAgain(t *testing.T) {
	for policy, want := range map[corev1.PullPolicy]corev1.PullPolicy{
		"": corev1.PullIfNotPresent, corev1.PullAlways: corev1.PullAlways,
	} {
		cluster := demo(func(s *v1alpha1.ApiServerClusterSpec) { s.ImagePullPolicy = policy })
		pod, err := Pod(cluster, "quorate:latest", replicas["initial member"].replica, "")
		if err != nil {
			t.Fatal(err)
		}
		if got := pod.Spec.Containers[0].ImagePullPolicy; got != want {
			t.Errorf("policy %q: %q, want %q", policy, got, want)
		}
	}
}

// TestUnresponsiveReplicaIsNotReadySoon checks that a replica that does not respond is not ready after at most ten
// seconds.
func TestUnresponsiveReplicaIsNotReadySoon(t *testing.T) {
	pod, err := Pod(demo(nil), "quorate:1", Replica{Name: "demo-0", Member: true}, "")
	if err != nil {
		t.Fatal(err)
	}
	p := pod.Spec.Containers[0].ReadinessProbe
	if longest := p.FailureThreshold * (p.PeriodSeconds + p.TimeoutSeconds); longest > 10 {
		t.Errorf("got a readiness probe that fails after up to %d seconds without a response, want at most 10", longest)
	}
}

// TestMembersResolveBeforeTheyAreReady checks that members can resolve each other before any of them is ready.
func TestMembersResolveBeforeTheyAreReady(t *testing.T) {
	cluster := demo(nil)
	pod, err := Pod(cluster, "quorate:1", replicas["initial member"].replica, "")
	if err != nil {
		t.Fatal(err)
	}
	server, err := Pod(cluster, "quorate:1", replicas["server"].replica, "")
	if err != nil {
		t.Fatal(err)
	}
	service := membersService(cluster)
	if !service.Spec.PublishNotReadyAddresses || service.Spec.ClusterIP != corev1.ClusterIPNone {
		t.Errorf("the members Service is not headless or does not publish unready addresses: %+v", service.Spec)
	}
	if pod.Spec.Subdomain != service.Name ||
		PeerURL(cluster, pod.Name) != "https://"+pod.Spec.Hostname+"."+service.Name+".ns.svc:2380" {
		t.Errorf("pod %s has DNS name %s.%s, but peer URL %s", pod.Name, pod.Spec.Hostname, pod.Spec.Subdomain,
			PeerURL(cluster, pod.Name))
	}
	selector := labels.SelectorFromSet(service.Spec.Selector)
	if !selector.Matches(labels.Set(pod.Labels)) || selector.Matches(labels.Set(server.Labels)) {
		t.Errorf("selector %s: must select %v, must not select %v", selector, pod.Labels, server.Labels)
	}
}

// TestMembersCanWriteTheirVolumes checks fsGroup: provisioned volumes belong to root, but the process runs as another
// user.
func TestMembersCanWriteTheirVolumes(t *testing.T) {
	pod, err := Pod(demo(nil), "quorate:1", replicas["initial member"].replica, "")
	if err != nil {
		t.Fatal(err)
	}
	if s := pod.Spec.SecurityContext; s.FSGroup == nil || *s.FSGroup != *s.RunAsGroup {
		t.Errorf("fsGroup is not the group of the process: %+v", s)
	}
	for _, mount := range pod.Spec.Containers[0].VolumeMounts {
		if mount.Name == "data" && mount.MountPath == dataDirectory && !mount.ReadOnly {
			return
		}
	}
	t.Errorf("no writable data volume in %+v", pod.Spec.Containers[0].VolumeMounts)
}

func TestServingCertificateNames(t *testing.T) {
	cluster := demo(func(s *v1alpha1.ApiServerClusterSpec) { s.ExtraSANs = []string{"api.example.org", "192.0.2.1"} })
	authority, err := pki.NewAuthority("a", pki.AuthorityLifetime, metav1.Now().Time)
	if err != nil {
		t.Fatal(err)
	}
	leaf := Certificates(cluster, []string{"10.0.0.9", "lb.example.org"})[0].Leaf
	if _, err := authority.Issue(leaf, metav1.Now().Time); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{
		"demo.ns.svc", "kubernetes.default.svc", "api.example.org", "lb.example.org", "*.demo-members.ns.svc",
	} {
		if !slices.Contains(leaf.DNSNames, name) {
			t.Errorf("missing DNS name %s", name)
		}
	}
	for _, address := range []string{"127.0.0.1", "10.0.0.9", "192.0.2.1"} {
		if !slices.ContainsFunc(leaf.Addresses, net.ParseIP(address).Equal) {
			t.Errorf("missing address %s", address)
		}
	}
}

func TestBudget(t *testing.T) {
	for _, c := range []struct {
		replicas, members int32
		voters, min       int
	}{{1, 1, 1, 0}, {3, 3, 3, 2}, {3, 3, 1, 2}, {1, 1, 3, 2}, {5, 5, 4, 3}, {7, 3, 5, 3}} {
		budget := Budget(demo(func(s *v1alpha1.ApiServerClusterSpec) {
			s.Replicas, s.Etcd.Embedded = &c.replicas, &v1alpha1.EmbeddedEtcd{Members: &c.members}
		}), c.voters)
		switch {
		case c.min == 0 && budget != nil:
			t.Errorf("%+v: a budget that allows no disruption: %+v", c, budget)
		case c.min > 0 && (budget == nil || budget.Spec.MinAvailable.IntValue() != c.min):
			t.Errorf("%+v: budget %+v", c, budget)
		}
	}
	if budget := Budget(demo(external), 0); budget == nil || budget.Spec.MaxUnavailable.IntValue() != 1 {
		t.Errorf("external etcd: budget %+v", budget)
	}
}

func TestValidate(t *testing.T) {
	claim := corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "demo-0"}}
	claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("8Gi")}
	claim.Spec.StorageClassName = ptr.To("slow")
	for name, c := range map[string]struct {
		edit func(*v1alpha1.ApiServerClusterSpec)
		want string
	}{
		"valid":           {nil, ""},
		"a larger volume": {func(s *v1alpha1.ApiServerClusterSpec) { s.Storage.Size = resource.MustParse("9Gi") }, ""},
		"tuning flag": {
			func(s *v1alpha1.ApiServerClusterSpec) { s.ExtraArgs = map[string]string{"etcd-snapshot-count": "9"} }, "",
		},
		"two voters": {func(s *v1alpha1.ApiServerClusterSpec) {
			s.Etcd.Embedded = &v1alpha1.EmbeddedEtcd{Members: ptr.To[int32](2)}
		}, "must be 1, 3 or 5"},
		"too many voters": {func(s *v1alpha1.ApiServerClusterSpec) {
			s.Etcd.Embedded = &v1alpha1.EmbeddedEtcd{Members: ptr.To[int32](5)}
		}, "must not exceed spec.replicas"},
		"negative replicas": {func(s *v1alpha1.ApiServerClusterSpec) { s.Replicas = ptr.To[int32](-1) }, "between 0 and 100"},
		"two etcds": {
			func(s *v1alpha1.ApiServerClusterSpec) { external(s); s.Etcd.Embedded = &v1alpha1.EmbeddedEtcd{} },
			"either embedded or external",
		},
		"a smaller volume": {
			func(s *v1alpha1.ApiServerClusterSpec) { s.Storage.Size = resource.MustParse("1Gi") }, "only grow",
		},
		"changed class": {func(s *v1alpha1.ApiServerClusterSpec) { s.Storage.Class = ptr.To("fast") }, "immutable"},
		"operator's flag": {
			func(s *v1alpha1.ApiServerClusterSpec) { s.ExtraArgs = map[string]string{"etcd-name": "x"} }, "set by the operator",
		},
		"operator's port": {
			func(s *v1alpha1.ApiServerClusterSpec) {
				s.ExtraArgs = map[string]string{"secure-port": "1"}
			}, "set by the operator",
		},
		"unknown flag": {
			func(s *v1alpha1.ApiServerClusterSpec) { s.ExtraArgs = map[string]string{"nope": "x"} }, `no flag "nope"`,
		},
		"invalid value": {
			func(s *v1alpha1.ApiServerClusterSpec) {
				s.ExtraArgs = map[string]string{"max-requests-inflight": "x"}
			}, "max-requests-inflight",
		},
	} {
		err := Validate(demo(c.edit), []corev1.PersistentVolumeClaim{claim})
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", name, err, c.want)
		}
	}
	converted := demo(external)
	converted.Status.Membership = &v1alpha1.Membership{Bootstrapped: true}
	if err := Validate(converted, nil); err == nil || !strings.Contains(err.Error(), "cannot be switched") {
		t.Errorf("switching to an external etcd: error %v", err)
	}
	long := demo(nil)
	long.Name = strings.Repeat("x", 46)
	if err := Validate(long, nil); err == nil {
		t.Error("a name of 46 letters was accepted")
	}
}

func TestPodHasThePreviousVersion(t *testing.T) {
	cluster := demo(nil)
	replica := Replica{Name: "demo-3", Endpoints: []string{ClientURL(cluster, "demo-0")}}
	for _, test := range []struct{ version, effective, emulated, want string }{
		{},
		{version: "v1.37.2", want: "v1.37.2"},
		{version: "v1.37.2", effective: "v1.36.0", want: "v1.37.2"}, // the next pod serves 1.37
		{version: "v1.37.2", effective: "v1.36.0", emulated: "1.36", want: "v1.36.0"},
		{version: "v1.37.2", effective: "v1.37.0", emulated: "1.36", want: "v1.37.0"},
		{version: "v1.36.3", emulated: "1.36", want: "v1.36.3"}, // the former operator has not stored the effective version
	} {
		cluster.Status.Version, cluster.Status.EffectiveVersion = test.version, test.effective
		cluster.Spec.ExtraArgs = map[string]string{}
		if test.emulated != "" {
			cluster.Spec.ExtraArgs["emulated-version"] = test.emulated
		}
		pod, err := Pod(cluster, "quorate:1", replica, "")
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, variable := range pod.Spec.Containers[0].Env {
			if variable.Name == config.PreviousVersionVariable {
				got = variable.Value
			}
		}
		if got != test.want {
			t.Errorf("%+v: %s is %q", test, config.PreviousVersionVariable, got)
		}
	}
}
