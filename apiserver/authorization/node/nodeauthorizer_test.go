package node_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	"k8s.io/kubernetes/pkg/features"

	"quorate.dev/apiserver/authorization/node"
)

// objects returns a pod on the node "one" and the objects that the pod refers to.
func objects() []runtime.Object {
	driver := "csi.example.com"
	disk := corev1.PersistentVolumeSource{
		CSI: &corev1.CSIPersistentVolumeSource{
			Driver: driver, VolumeHandle: "d",
			NodePublishSecretRef: &corev1.SecretReference{Name: "of-volume", Namespace: "team"},
		},
	}
	return []runtime.Object{
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one"}},
		&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "team"},
			Spec: corev1.PodSpec{
				NodeName: "one", ServiceAccountName: "web",
				Volumes: []corev1.Volume{
					{Name: "s", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "of-pod"}}},
					{Name: "c", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
						LocalObjectReference: corev1.LocalObjectReference{Name: "settings"},
					}}},
					{Name: "d", VolumeSource: corev1.VolumeSource{
						PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
					}},
				},
			},
		},
		&corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "disk"},
			Spec: corev1.PersistentVolumeSpec{
				PersistentVolumeSource: disk, ClaimRef: &corev1.ObjectReference{Namespace: "team", Name: "data"},
			},
		},
		&storagev1.VolumeAttachment{
			ObjectMeta: metav1.ObjectMeta{Name: "attachment"},
			Spec:       storagev1.VolumeAttachmentSpec{Attacher: driver, NodeName: "one"},
		},
		&resourcev1.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: "devices"},
			Spec:       resourcev1.ResourceSliceSpec{Driver: "gpu.example.com", NodeName: new("one")},
		},
	}
}

func kubelet(name string) user.Info {
	return &user.DefaultInfo{Name: "system:node:" + name, Groups: []string{user.NodesGroup}}
}

// request returns a request for an object, in the namespace "team" unless the resource has none.
func request(u user.Info, verb, group, resource, subresource, name string) authorizer.AttributesRecord {
	a := authorizer.AttributesRecord{
		User: u, Verb: verb, Namespace: "team", APIGroup: group, APIVersion: "v1", Resource: resource,
		Subresource: subresource, Name: name, ResourceRequest: true,
	}
	switch resource {
	case "persistentvolumes", "volumeattachments", "resourceslices", "nodes":
		a.Namespace = ""
	}
	return a
}

// requests are requests that only the kubelet of the node "one" may send.
func requests(u user.Info) map[string]authorizer.AttributesRecord {
	return map[string]authorizer.AttributesRecord{
		"a Secret of its pod":         request(u, "get", "", "secrets", "", "of-pod"),
		"a ConfigMap of its pod":      request(u, "watch", "", "configmaps", "", "settings"),
		"a claim of its pod":          request(u, "get", "", "persistentvolumeclaims", "", "data"),
		"the volume of a claim":       request(u, "get", "", "persistentvolumes", "", "disk"),
		"the Secret of a volume":      request(u, "get", "", "secrets", "", "of-volume"),
		"a token of its pod":          request(u, "create", "", "serviceaccounts", "token", "web"),
		"its attachment of a volume":  request(u, "get", "storage.k8s.io", "volumeattachments", "", "attachment"),
		"its own node":                request(u, "get", "", "nodes", "", "one"),
		"the devices of its own node": request(u, "get", "resource.k8s.io", "resourceslices", "", "devices"),
	}
}

func decide(t *testing.T, a *node.Authorizer, attributes authorizer.Attributes) authorizer.Decision {
	t.Helper()
	decision, _, err := a.Authorize(t.Context(), attributes)
	if err != nil {
		t.Fatal(err)
	}
	return decision
}

// TestAuthorize: a kubelet may access the objects that the pods on its node refer to, and other kubelets may not.
func TestAuthorize(t *testing.T) {
	t.Parallel()
	factory := informers.NewSharedInformerFactory(fake.NewClientset(objects()...), 0)
	a := node.New(factory)
	secret, outsider := requests(kubelet("one"))["a Secret of its pod"], &user.DefaultInfo{Name: "system:node:one"}
	if a.Synced() || decide(t, a, secret) == authorizer.DecisionAllow {
		t.Error("requests are allowed before the graph is complete")
	}
	factory.StartWithContext(t.Context())
	if !cache.WaitForCacheSync(t.Context().Done(), a.Synced) {
		t.Fatal("the graph was not completed")
	}
	for name, attributes := range requests(kubelet("one")) {
		if got := decide(t, a, attributes); got != authorizer.DecisionAllow {
			t.Errorf("the node one accesses %s: got %v", name, got)
		}
	}
	for name, attributes := range requests(kubelet("two")) {
		if got := decide(t, a, attributes); got != authorizer.DecisionNoOpinion {
			t.Errorf("the node two accesses %s: got %v", name, got)
		}
	}
	for name, attributes := range map[string]authorizer.AttributesRecord{
		"a Secret without a reference": request(kubelet("one"), "get", "", "secrets", "", "other"),
		"all Secrets":                  request(kubelet("one"), "list", "", "secrets", "", ""),
		"the deletion of a Secret":     request(kubelet("one"), "delete", "", "secrets", "", "of-pod"),
		"a Deployment":                 request(kubelet("one"), "get", "apps", "deployments", "", "web"),
		"a Secret, by a user":          request(&user.DefaultInfo{Name: "alice"}, "get", "", "secrets", "", "of-pod"),
		"a Secret, without a group":    request(outsider, "get", "", "secrets", "", "of-pod"),
	} {
		if got := decide(t, a, attributes); got != authorizer.DecisionNoOpinion {
			t.Errorf("%s: got %v", name, got)
		}
	}
	// Services are not subdivided by node.
	if got := decide(t, a, request(kubelet("two"), "list", "", "services", "", "")); got != authorizer.DecisionAllow {
		t.Errorf("a kubelet lists Services: got %v", got)
	}
}

// TestRulesFor: the rules of a node are incomplete, because they depend on its pods.
func TestRulesFor(t *testing.T) {
	t.Parallel()
	a := node.New(informers.NewSharedInformerFactory(fake.NewClientset(), 0))
	if _, _, incomplete, err := a.RulesFor(t.Context(), kubelet("one"), "team"); !incomplete || err == nil {
		t.Errorf("a node: got incomplete %t, %v", incomplete, err)
	}
	_, _, incomplete, err := a.RulesFor(t.Context(), &user.DefaultInfo{Name: "alice"}, "team")
	if incomplete || err != nil {
		t.Errorf("a user: got incomplete %t, %v", incomplete, err)
	}
}

// TestInformersOfGates: the informer of PodCertificateRequests exists only with the feature gate.
func TestInformersOfGates(t *testing.T) {
	for enabled, want := range map[bool]int{false: 4, true: 5} {
		featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate,
			features.PodCertificateRequest, enabled)
		factory := informers.NewSharedInformerFactory(fake.NewClientset(), 0)
		a := node.New(factory)
		factory.StartWithContext(t.Context())
		if got := len(factory.WaitForCacheSync(t.Context().Done())); got != want {
			t.Errorf("with PodCertificateRequest=%t: got %d informers, want %d", enabled, got, want)
		}
		if !cache.WaitForCacheSync(t.Context().Done(), a.Synced) {
			t.Errorf("with PodCertificateRequest=%t: the graph was not completed", enabled)
		}
	}
}
