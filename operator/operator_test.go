package operator

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/test/upstream"
)

// environment is a quorate API server in envtest, with the CRD, the operator and a simulated node.
type environment struct {
	t         *testing.T
	admin     *rest.Config
	client    client.Client
	node      *node
	namespace string // of the clusters
}

// start applies a file of manifests and runs the operator with additional arguments.
func start(t *testing.T, manifests, namespace string, args ...string) *environment {
	t.Helper()
	e := startServer(t, "../config/crd", namespace)
	e.install(manifests)
	e.operate(args)
	return e
}

// startServer starts the API server with CRDs, and the simulated node.
func startServer(t *testing.T, definitions, namespace string, flags ...string) *environment {
	t.Helper()
	e := startAPI(t, definitions, namespace, flags...)
	e.node = startNode(t, e.client)
	return e
}

// startAPI starts the API server with CRDs and flags.
func startAPI(t *testing.T, definitions, namespace string, flags ...string) *environment {
	t.Helper()
	upstream.NeedsProcesses(t)
	binary, err := upstream.Quorate(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	assets := t.TempDir() // see docs/envtest.md
	for _, name := range []string{"kube-apiserver", "etcd"} {
		if err := os.Symlink(binary, filepath.Join(assets, name)); err != nil {
			t.Fatal(err)
		}
	}
	server := &envtest.Environment{
		BinaryAssetsDirectory: assets, CRDDirectoryPaths: []string{definitions}, ErrorIfCRDPathMissing: true,
	}
	server.ControlPlane.GetAPIServer().Configure().Append("disable-admission-plugins", "StorageObjectInUseProtection")
	for _, text := range flags {
		name, value, _ := strings.Cut(strings.TrimPrefix(text, "--"), "=")
		server.ControlPlane.GetAPIServer().Configure().Append(name, value)
	}
	admin, err := server.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	c, err := client.New(admin, client.Options{Scheme: Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	return &environment{t: t, admin: admin, client: c, namespace: namespace}
}

// install applies the manifests. The namespace of the clusters enforces the restricted pod security standard.
func (e *environment) install(manifests string) {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: e.namespace}}
	if err := e.client.Create(e.t.Context(), namespace); err != nil && !apierrors.IsAlreadyExists(err) {
		e.t.Fatal(err)
	}
	if err := e.client.Get(e.t.Context(), client.ObjectKeyFromObject(namespace), namespace); err != nil {
		e.t.Fatal(err)
	}
	metav1.SetMetaDataLabel(&namespace.ObjectMeta, "pod-security.kubernetes.io/enforce", "restricted")
	if err := e.client.Update(e.t.Context(), namespace); err != nil {
		e.t.Fatal(err)
	}
	for _, object := range documents(e.t, manifests) {
		if err := e.client.Create(e.t.Context(), object); err != nil && !apierrors.IsAlreadyExists(err) {
			e.t.Fatalf("%s %s: %v", object.GetKind(), object.GetName(), err)
		}
	}
}

const operatorUser = "system:serviceaccount:quorate-system:quorate-operator"

// operate runs the operator from its command line, with the permissions of its service account.
func (e *environment) operate(args []string) {
	ctx, cancel := context.WithCancel(e.t.Context())
	exited := make(chan error, 1)
	command := append(e.operatorArguments(), args...)
	go func() { exited <- Run(ctx, command) }()
	e.t.Cleanup(func() {
		cancel()
		if err := <-exited; err != nil {
			e.t.Errorf("operator: %v", err)
		}
	})
}

// operatorArguments returns the command line of an operator with the permissions of its service account.
func (e *environment) operatorArguments() []string {
	kubeconfig, admin := filepath.Join(e.t.TempDir(), "kubeconfig"), e.admin
	text := clientcmdapi.NewConfig()
	text.Clusters["c"] = &clientcmdapi.Cluster{
		Server: admin.Host, CertificateAuthorityData: admin.CAData, CertificateAuthority: admin.CAFile,
	}
	text.AuthInfos["u"] = &clientcmdapi.AuthInfo{
		ClientCertificateData: admin.CertData, ClientKeyData: admin.KeyData,
		ClientCertificate: admin.CertFile, ClientKey: admin.KeyFile, Token: admin.BearerToken, Impersonate: operatorUser,
	}
	text.Contexts["x"], text.CurrentContext = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}, "x"
	if err := clientcmd.WriteToFile(*text, kubeconfig); err != nil {
		e.t.Fatal(err)
	}
	return []string{"--kubeconfig=" + kubeconfig, "--image=quorate:test", "--leader-election-namespace=quorate-system",
		"--metrics-bind-address=0", "--health-probe-bind-address=0"}
}

func (e *environment) get(name string) *v1alpha1.ApiServerCluster {
	e.t.Helper()
	cluster := &v1alpha1.ApiServerCluster{}
	if err := e.client.Get(e.t.Context(), client.ObjectKey{Namespace: e.namespace, Name: name}, cluster); err != nil {
		e.t.Fatal(err)
	}
	return cluster
}

// change updates a cluster's spec, and retries conflicts.
func (e *environment) change(name string, edit func(*v1alpha1.ApiServerClusterSpec)) {
	e.t.Helper()
	for {
		cluster := e.get(name)
		edit(&cluster.Spec)
		err := e.client.Update(e.t.Context(), cluster)
		if err == nil {
			return
		}
		if !apierrors.IsConflict(err) {
			e.t.Fatal(err)
		}
	}
}

// await waits until the spec of a cluster is observed and a condition holds.
func (e *environment) await(name, what string, holds func(*v1alpha1.ApiServerCluster) bool) *v1alpha1.ApiServerCluster {
	e.t.Helper()
	begin := time.Now()
	var cluster *v1alpha1.ApiServerCluster
	if !e.holdsWithin(40*time.Second, func() bool {
		cluster = e.get(name)
		return cluster.Status.ObservedGeneration == cluster.Generation && holds(cluster)
	}) {
		e.t.Fatalf("%s: timed out after %s: %s", what, time.Since(begin).Round(time.Second), describe(cluster))
	}
	e.t.Logf("%s: %s", what, time.Since(begin).Round(10*time.Millisecond))
	return cluster
}

func describe(cluster *v1alpha1.ApiServerCluster) string {
	var out strings.Builder
	fmt.Fprintf(&out, "ready %s, voters %d, %+v\n", cluster.Status.Ready, cluster.Status.Voters, cluster.Status.Membership)
	for _, m := range cluster.Status.Members {
		fmt.Fprintf(&out, "  %+v\n", m)
	}
	for _, c := range cluster.Status.Conditions {
		fmt.Fprintf(&out, "  %s %s %s: %s\n", c.Type, c.Status, c.Reason, c.Message)
	}
	return out.String()
}

// settled reports whether a cluster has the given numbers of healthy voters and ready replicas, and does not progress.
func settled(voters, replicas int) func(*v1alpha1.ApiServerCluster) bool {
	return func(cluster *v1alpha1.ApiServerCluster) bool {
		s := cluster.Status
		ready := 0
		for _, m := range s.Members {
			if m.Ready && m.Role != "learner" {
				ready++
			}
		}
		return int(s.Voters) == voters && ready == voters && s.Ready == fmt.Sprintf("%d/%d", replicas, replicas) &&
			meta.IsStatusConditionTrue(s.Conditions, v1alpha1.Available) &&
			meta.IsStatusConditionFalse(s.Conditions, v1alpha1.Progressing) &&
			meta.IsStatusConditionFalse(s.Conditions, v1alpha1.Degraded) &&
			meta.IsStatusConditionTrue(s.Conditions, v1alpha1.CertificatesValid)
	}
}

func (e *environment) create(name string, spec v1alpha1.ApiServerClusterSpec) error {
	return e.client.Create(e.t.Context(), &v1alpha1.ApiServerCluster{
		ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: name}, Spec: spec,
	})
}

func scale(replicas int32) func(*v1alpha1.ApiServerClusterSpec) {
	return func(spec *v1alpha1.ApiServerClusterSpec) { spec.Replicas = ptr.To(replicas) }
}

func TestClusterLifecycle(t *testing.T) {
	e := start(t, "../manifests/install.yaml", "default")
	if err := e.create("demo", v1alpha1.ApiServerClusterSpec{}); err != nil {
		t.Fatal(err)
	}
	e.await("demo", "bootstrap three replicas", settled(3, 3))
	e.checkBudget(2)

	e.change("demo", scale(1))
	e.await("demo", "scale from three to one", settled(1, 1))
	e.checkNoBudget()
	e.change("demo", scale(3))
	e.await("demo", "scale from one to three", settled(3, 3))
	e.change("demo", scale(6))
	e.await("demo", "scale to five voters and a server", settled(5, 6))
	e.checkBudget(3)
	e.change("demo", scale(3))
	before := e.await("demo", "scale to three", settled(3, 3))

	e.replace(before.Status.Members[0].Name)
	e.roll()
	e.refuse()
	e.removeAll()
	e.createWithExistingClaim()
}

// createWithExistingClaim creates a cluster whose first claim exists: a claim of another owner is an error, and the
// operator waits for a terminating one.
func (e *environment) createWithExistingClaim() {
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: "again-0", Finalizers: []string{"example.org/keep"}},
	}
	claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	if err := e.client.Create(e.t.Context(), claim); err != nil {
		e.t.Fatal(err)
	}
	if err := e.create("again", v1alpha1.ApiServerClusterSpec{Replicas: ptr.To[int32](1)}); err != nil {
		e.t.Fatal(err)
	}
	e.await("again", "claim of another owner", func(cluster *v1alpha1.ApiServerCluster) bool {
		c := meta.FindStatusCondition(cluster.Status.Conditions, v1alpha1.Degraded)
		return c != nil && c.Reason == "ReconcileFailed" && strings.Contains(c.Message, "an object named again-0 exists")
	})
	if err := e.client.Delete(e.t.Context(), claim); err != nil {
		e.t.Fatal(err)
	}
	e.await("again", "terminating claim", func(cluster *v1alpha1.ApiServerCluster) bool {
		return meta.IsStatusConditionFalse(cluster.Status.Conditions, v1alpha1.Degraded)
	})
	released := claim.DeepCopy()
	released.Finalizers = nil
	if err := e.client.Patch(e.t.Context(), released, client.MergeFrom(claim)); err != nil {
		e.t.Fatal(err)
	}
	e.await("again", "bootstrap one replica", settled(1, 1))
}

// replace deletes a member's claim and pod, and waits for its replacement.
func (e *environment) replace(name string) {
	for _, object := range []client.Object{&corev1.PersistentVolumeClaim{}, &corev1.Pod{}} {
		object.SetNamespace(e.namespace)
		object.SetName(name)
		if err := e.client.Delete(e.t.Context(), object); err != nil {
			e.t.Fatal(err)
		}
	}
	e.await("demo", "replace a member without volume", func(cluster *v1alpha1.ApiServerCluster) bool {
		for _, m := range cluster.Status.Members {
			if m.Name == name {
				return false
			}
		}
		return settled(3, 3)(cluster)
	})
}

// roll changes an argument: all pods are replaced, the leader's last.
func (e *environment) roll() {
	leader := ""
	for _, m := range e.get("demo").Status.Members {
		if m.Role == "leader" {
			leader = m.Name
		}
	}
	e.change("demo", func(spec *v1alpha1.ApiServerClusterSpec) {
		spec.ExtraArgs = map[string]string{"max-requests-inflight": "321"}
	})
	e.await("demo", "roll out an argument", func(cluster *v1alpha1.ApiServerCluster) bool {
		for _, pod := range e.pods() {
			if !strings.Contains(strings.Join(pod.Spec.Containers[0].Args, " "), "--max-requests-inflight=321") {
				return false
			}
		}
		return settled(3, 3)(cluster)
	})
	newest := e.pods()[0]
	for _, pod := range e.pods() {
		if newest.CreationTimestamp.Before(&pod.CreationTimestamp) {
			newest = pod
		}
	}
	if newest.Name != leader {
		e.t.Errorf("%s was restarted last, want the leader %s", newest.Name, leader)
	}
}

func (e *environment) pods() []corev1.Pod {
	var pods corev1.PodList
	if err := e.client.List(e.t.Context(), &pods, client.InNamespace(e.namespace)); err != nil {
		e.t.Fatal(err)
	}
	return pods.Items
}

// refuse updates the spec with values that the CRD rejects, and with one that only the operator rejects.
func (e *environment) refuse() {
	for want, edit := range map[string]func(*v1alpha1.ApiServerClusterSpec){
		"storage.size can only grow": func(s *v1alpha1.ApiServerClusterSpec) {
			s.Storage.Size = resource.MustParse("1Gi")
		},
		"storage.class is immutable": func(s *v1alpha1.ApiServerClusterSpec) {
			s.Storage.Class = ptr.To("fast")
		},
		"this flag is set by the operator: etcd-*": func(s *v1alpha1.ApiServerClusterSpec) {
			s.ExtraArgs["etcd-servers"] = "http://127.0.0.1:1"
		},
		"or the API server does not implement it": func(s *v1alpha1.ApiServerClusterSpec) {
			s.ExtraArgs["token-auth-file"] = "/x"
		},
		"not a DNS name or IP address: 10.0.0.300": func(s *v1alpha1.ApiServerClusterSpec) {
			s.ExtraSANs = []string{"api.example.org", "not a name", "10.0.0.300"}
		},
		"flag names have no leading dashes": func(s *v1alpha1.ApiServerClusterSpec) { s.ExtraArgs["--v"] = "3" },
		"must not exceed replicas": func(s *v1alpha1.ApiServerClusterSpec) {
			s.Etcd.Embedded = &v1alpha1.EmbeddedEtcd{Members: ptr.To[int32](5)}
		},
		"Unsupported value": func(s *v1alpha1.ApiServerClusterSpec) {
			s.Etcd.Embedded = &v1alpha1.EmbeddedEtcd{Members: ptr.To[int32](2)}
		},
		"switched between embedded and external": func(s *v1alpha1.ApiServerClusterSpec) {
			s.Etcd.External = &v1alpha1.ExternalEtcd{Endpoints: []string{"http://x:1"}}
		},
	} {
		cluster := e.get("demo")
		edit(&cluster.Spec)
		if err := e.client.Update(e.t.Context(), cluster); err == nil || !strings.Contains(err.Error(), want) {
			e.t.Errorf("error %v, want %q", err, want)
		}
	}
	if err := e.create("Bad.Name", v1alpha1.ApiServerClusterSpec{}); err == nil {
		e.t.Error("a name that is no DNS label was accepted")
	}
	before := e.pods()
	e.change("demo", func(s *v1alpha1.ApiServerClusterSpec) {
		s.ExtraArgs["no-such-flag"] = "1"
		s.Replicas = ptr.To[int32](5)
	})
	e.await("demo", "invalid spec", func(cluster *v1alpha1.ApiServerCluster) bool {
		c := meta.FindStatusCondition(cluster.Status.Conditions, v1alpha1.Degraded)
		return c != nil && c.Reason == "InvalidSpec" && strings.Contains(c.Message, `no flag "no-such-flag"`)
	})
	if after := e.pods(); len(after) != len(before) {
		e.t.Errorf("an invalid spec changed %d pods to %d", len(before), len(after))
	}
}

// removeAll deletes the cluster and waits until none of its objects remain.
func (e *environment) removeAll() {
	if err := e.client.Delete(e.t.Context(), e.get("demo")); err != nil {
		e.t.Fatal(err)
	}
	lists := []client.ObjectList{&v1alpha1.ApiServerClusterList{}, &corev1.PodList{}, &corev1.PersistentVolumeClaimList{},
		&corev1.SecretList{}, &policyv1.PodDisruptionBudgetList{}, &networkingv1.NetworkPolicyList{}}
	e.until("the end of all objects of the cluster", func() bool {
		remaining := 0
		for _, list := range lists {
			if err := e.client.List(e.t.Context(), list, client.InNamespace(e.namespace)); err != nil {
				e.t.Fatal(err)
			}
			remaining += meta.LenList(list)
		}
		return remaining == 0
	})
}

func (e *environment) checkBudget(want int) {
	e.t.Helper()
	var budget policyv1.PodDisruptionBudget
	if err := e.client.Get(e.t.Context(), client.ObjectKey{Namespace: e.namespace, Name: "demo"}, &budget); err != nil {
		e.t.Fatal(err)
	}
	if budget.Spec.MinAvailable.IntValue() != want {
		e.t.Errorf("minAvailable of the disruption budget: %s, want %d", budget.Spec.MinAvailable, want)
	}
}

func (e *environment) checkNoBudget() {
	e.t.Helper()
	err := e.client.Get(e.t.Context(), client.ObjectKey{Namespace: e.namespace, Name: "demo"},
		&policyv1.PodDisruptionBudget{})
	if !apierrors.IsNotFound(err) {
		e.t.Errorf("disruption budget of a single member: error %v, want NotFound", err)
	}
}

func TestCommandLine(t *testing.T) {
	for name, args := range map[string][]string{
		"unknown flag":       {"--no-such-flag"},
		"argument":           {"what"},
		"log format":         {"--logging-format=xml"},
		"missing kubeconfig": {"--kubeconfig=" + filepath.Join(t.TempDir(), "none")},
	} {
		if err := Run(t.Context(), args); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestPodNamespace(t *testing.T) {
	for _, c := range []struct{ flag, kubeconfig, kubeconfigVariable, namespaceVariable, want string }{
		{"", "", "", "quorate-system", "quorate-system"},
		{"mine", "", "", "quorate-system", "mine"},
		{"mine", "/x", "", "", "mine"},
		{"", "/x", "", "quorate-system", ""},
		{"", "", "/x", "quorate-system", ""},
		{"", "", "", "", ""},
	} {
		t.Setenv("KUBECONFIG", c.kubeconfigVariable)
		t.Setenv(namespaceVariable, c.namespaceVariable)
		o := options{podNamespace: c.flag, kubeconfig: c.kubeconfig}
		o.complete()
		if o.podNamespace != c.want {
			t.Errorf("%+v: pod namespace %q", c, o.podNamespace)
		}
	}
}
