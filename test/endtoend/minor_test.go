package endtoend

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/test/upstream"
)

const formerImage, nextImage = "quorate:former", "quorate:next"

// TestMinorUpgrade changes a cluster under load from the previous Kubernetes minor version to the present minor
// version, back, and forward again, while --emulated-version holds the present version back. Then the test removes
// --emulated-version, after which the API servers refuse to go back. No request of a client fails, no informer of any
// kind has to list its kind again, an admission webhook is called for every write, and an aggregated API is served.
func TestMinorUpgrade(t *testing.T) {
	if os.Getenv("QUORATE_UPGRADE") == "" {
		t.Skip("builds the previous minor version; set QUORATE_UPGRADE=full (make upgrade)")
	}
	previous, err := upstream.PreviousMinor(t.Context())
	if err != nil {
		t.Fatal(err) // without history, too: the test must not pass without a previous version
	}
	t.Cleanup(func() { _ = os.RemoveAll(previous.Root) })
	s := startSandbox(t, "--image="+formerImage+"="+previous.Binary)
	s.settled(3, 3)
	former := s.awaitVersion("of the previous release", "")
	t.Logf("the previous release is %s, Kubernetes %s", previous.Name, former)
	webhook := s.callWebhook(t) // the encryption takes so long that all replicas know the webhook then
	s.createSecrets(20)
	s.rotate("encryption", map[string]any{"resources": []string{"secrets"}})
	s.applyKinds()
	address := upstream.GlobalAddress(t)
	if address == "" {
		t.Fatal("this machine has only loopback addresses, which are invalid in EndpointSlices")
	}
	s.serveReports(t, address)
	h := record(t, s.following())
	l := h.addLoad(s.following())
	reports := l.readReports()
	kinds := followKinds(t, s.following())
	minor := strings.Join(strings.Split(strings.TrimPrefix(former, "v"), ".")[:2], ".")
	for _, e := range []event{
		{"upgrade, held back", planned, func() { s.upgradeTo(nextImage, minor, "v"+minor+".0") }},
		{"go back", planned, func() { s.upgradeTo(formerImage, minor, "v"+minor+".0") }},
		{"upgrade again", planned, func() { s.upgradeTo(nextImage, minor, "v"+minor+".0") }},
		{"confirm the new version", planned, func() { s.upgradeTo(nextImage, "", "") }},
		{"refuse to go back", planned, s.refuseDowngrade},
	} {
		t.Run(e.name, func(t *testing.T) { webhook.during(t, func() { s.during(t, h, l, e) }) })
		if t.Failed() {
			t.FailNow()
		}
	}
	kinds.verify(t)
	h.verify()
	l.verify(s)
	webhook.verify(t, h)
	reports.verify(t)
	requests, failed := h.failures.totals()
	t.Logf("%d requests succeeded, %d failed", requests, failed)
}

// upgradeTo sets the image and the flag --emulated-version of demo, and waits until all pods have both and the status
// has the given effective version. An empty emulated version removes the flag. An empty effective version is not
// awaited.
func (s *sandbox) upgradeTo(image, emulated, effective string) {
	s.t.Helper()
	value := "null"
	if emulated != "" {
		value = fmt.Sprintf("%q", emulated)
	}
	s.patchSpec(fmt.Sprintf(`{"image":%q,"extraArgs":{"emulated-version":%s}}`, image, value))
	s.waitForUpTo(rotationTimeout, "all pods have the image and its arguments", func() (bool, string) {
		pods := must(s.pods.CoreV1().Pods("default").List(s.t.Context(),
			metav1.ListOptions{LabelSelector: "quorate.dev/cluster=demo"}))(s.t)
		current := 0
		for _, pod := range pods.Items {
			c := pod.Spec.Containers[0]
			emulates := slices.Contains(c.Args, "--emulated-version="+emulated)
			if c.Image == image && emulates == (emulated != "") {
				current++
			}
		}
		return current == 3 && len(pods.Items) == 3, fmt.Sprint(current)
	})
	s.settled(3, 3)
	s.awaitVersion("after the change", effective)
}

// awaitVersion waits until the status has a version of the API servers and the given effective version, and returns
// the version of the API servers. An empty effective version is not awaited.
func (s *sandbox) awaitVersion(when, effective string) (version string) {
	s.t.Helper()
	s.waitFor("the version "+when, func() (bool, string) {
		status := s.cluster().Status
		version = status.Version
		return version != "" && (effective == "" || status.EffectiveVersion == effective),
			version + ", effective " + status.EffectiveVersion
	})
	return version
}

// refuseDowngrade sets the former image after the emulated version has been removed. The first replaced pod refuses
// to start, the other replicas continue to serve, and the status has the reason. Then refuseDowngrade sets the
// present image again.
func (s *sandbox) refuseDowngrade() {
	s.t.Helper()
	s.patchSpec(fmt.Sprintf(`{"image":%q}`, formerImage))
	s.waitFor("the reason of the refusal", func() (bool, string) {
		c := meta.FindStatusCondition(s.cluster().Status.Conditions, v1alpha1.Degraded)
		const refusal = "a downgrade to an older minor version is not supported"
		return c != nil && strings.Contains(c.Message, refusal), fmt.Sprint(c)
	})
	s.patchSpec(fmt.Sprintf(`{"image":%q}`, nextImage))
	s.settled(3, 3)
}

// applyKinds creates a CustomResourceDefinition with an object, and a policy.
func (s *sandbox) applyKinds() {
	s.t.Helper()
	s.apply(s.demo, `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: widgets, kind: Widget}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: widgets}
spec:
  matchConstraints:
    resourceRules:
    - {apiGroups: [example.com], apiVersions: ["*"], operations: [CREATE], resources: [widgets]}
  validations: [{expression: "object.size < 10"}]
`)
	s.run(s.demo, "wait", "--for=condition=Established", "crd/widgets.example.com")
	s.apply(s.demo, "{apiVersion: example.com/v1, kind: Widget, metadata: {name: a, namespace: default}, size: 1}")
}

// watchedKinds are informers of all kinds and the errors of their watches.
type watchedKinds struct {
	mu     sync.Mutex
	errors []string
}

// followKinds starts an informer of every kind that can be listed and watched, and waits until all have synced.
func followKinds(t *testing.T, config *rest.Config) *watchedKinds {
	t.Helper()
	client := must(discovery.NewDiscoveryClientForConfig(config))(t)
	lists := must(client.ServerPreferredResources())(t)
	factory := metadatainformer.NewSharedInformerFactory(must(metadata.NewForConfig(config))(t), 0)
	kinds := &watchedKinds{}
	for _, list := range lists {
		version := must(schema.ParseGroupVersion(list.GroupVersion))(t)
		for _, resource := range list.APIResources {
			if !slices.Contains(resource.Verbs, "list") || !slices.Contains(resource.Verbs, "watch") {
				continue
			}
			informer := factory.ForResource(version.WithResource(resource.Name)).Informer()
			check(t, informer.SetWatchErrorHandler(kinds.note(resource.Name)))
		}
	}
	factory.Start(t.Context().Done())
	for of, synced := range factory.WaitForCacheSync(t.Context().Done()) {
		if !synced {
			t.Fatalf("the informer of %s has not synced", of.Resource)
		}
	}
	return kinds
}

// note returns a handler that records the errors of a watch. The end of a connection is no error: the informer
// continues the watch from its last revision.
func (k *watchedKinds) note(resource string) cache.WatchErrorHandler {
	return func(_ *cache.Reflector, err error) {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.errors = append(k.errors, resource+": "+err.Error())
	}
}

// verify fails the test if an informer had to list its kind again, or if its kind was not served.
func (k *watchedKinds) verify(t *testing.T) {
	t.Helper()
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, text := range k.errors {
		t.Errorf("an informer reports: %s", text)
	}
}
