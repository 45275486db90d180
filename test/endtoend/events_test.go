package endtoend

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"quorate.dev/operator/api/v1alpha1"
)

// event is a change or a failure of a cluster under load, and its budget of failures that clients may observe.
type event struct {
	name   string
	budget budget
	do     func()
}

// during causes an event and compares the failures that clients observe with its budget.
func (s *sandbox) during(t *testing.T, h *history, l *load, e event) {
	outer := s.t
	s.t = t
	defer func() { s.t = outer }()
	h.failures.take()
	h.longestGap()
	e.do()
	l.awaitProgress(s)
	h.spend(t, e.budget)
}

// longEvents are changes that take minutes in total.
func (s *sandbox) longEvents() []event {
	return []event{
		{"renew the certificates", planned, s.renewCertificates},
		{"roll out an argument", planned, func() { s.rollOut("2h0m0s") }},
		{"upgrade the image", planned, s.upgradeImage},
		{"evict a follower", planned, func() {
			_, follower := s.leader()
			s.evict(follower)
		}},
		{"evict the leader", planned, func() {
			leader, _ := s.leader()
			s.evict(leader)
		}},
		{"rotate the authorities", planned, func() {
			s.rotate("certificates", map[string]any{"authorities": map[string]any{"rotateBefore": now(), "overlap": "10s"}})
		}},
		{"rotate the service-account keys", planned, func() {
			s.rotate("certificates", map[string]any{
				"serviceAccountKeys": map[string]any{"rotateBefore": now(), "publicationPeriod": "2s", "overlap": "10s"},
			})
		}},
		{"encrypt objects", planned, func() {
			s.createSecrets(200)
			s.rotate("encryption", map[string]any{"resources": []string{"secrets"}})
		}},
		{"rotate the encryption key", planned, func() {
			s.rotate("encryption", map[string]any{"keys": map[string]any{"rotateBefore": now()}})
		}},
	}
}

// rotationTimeout limits the time for a rotation, in which all members restart several times.
const rotationTimeout = 10 * time.Minute

func now() string { return time.Now().UTC().Format(time.RFC3339) }

// merge merges values into a field of demo's spec.
func (s *sandbox) merge(field string, values map[string]any) {
	s.t.Helper()
	patch := must(json.Marshal(map[string]any{"spec": map[string]any{field: values}}))(s.t)
	s.run(s.management, "patch", "-n", "default", "apiservercluster/demo", "--type=merge", "-p", string(patch))
}

// rotate requests the replacement of authorities or keys and waits until it is complete.
func (s *sandbox) rotate(field string, values map[string]any) {
	s.t.Helper()
	s.merge(field, values)
	s.waitFor("the beginning of the rotation", func() (bool, string) {
		return condition(s.cluster(), v1alpha1.CredentialsRotating) == metav1.ConditionTrue,
			fmt.Sprint(s.cluster().Status.Conditions)
	})
	settled := s.isSettled(3, 3)
	s.waitForUpTo(rotationTimeout, "the end of the rotation", func() (bool, string) {
		ok, seen := settled()
		return ok && condition(s.cluster(), v1alpha1.CredentialsRotating) == metav1.ConditionFalse, seen
	})
}

// createSecrets creates objects in demo for the operator to encrypt. The objects of the history must keep their
// revisions.
func (s *sandbox) createSecrets(number int) {
	s.t.Helper()
	client := must(kubernetes.NewForConfig(s.demoConfig()))(s.t)
	for i := range number {
		secret := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("secret-%03d", i)}, StringData: map[string]string{"key": "value"},
		}
		must(client.CoreV1().Secrets("default").Create(s.t.Context(), secret, metav1.CreateOptions{}))(s.t)
	}
}

func (s *sandbox) scale(replicas int) {
	s.t.Helper()
	s.run(s.management, "scale", "-n", "default", "apiservercluster/demo", "--replicas="+strconv.Itoa(replicas))
	s.settled(replicas, replicas)
}

func (s *sandbox) freezeLeader() {
	s.t.Helper()
	leader, _ := s.leader()
	s.freeze(leader)
	s.settled(3, 3)
}

func (s *sandbox) killLeader() {
	s.t.Helper()
	leader, _ := s.leader()
	s.killAndAwait(leader)
}

func (s *sandbox) killFollower() {
	s.t.Helper()
	_, follower := s.leader()
	s.killAndAwait(follower)
}

func (s *sandbox) killAndAwait(pod string) {
	s.t.Helper()
	before := s.restarts(pod)
	s.kill(pod)
	s.restarted(pod, before)
	s.settled(3, 3)
}

func (s *sandbox) loseVolume() {
	s.t.Helper()
	_, follower := s.leader()
	s.run(s.management, "delete", "-n", "default", "pvc/"+follower, "--wait=false")
	s.run(s.management, "delete", "-n", "default", "pod/"+follower, "--wait=false")
	s.replaced(follower)
}

func (s *sandbox) renewCertificates() {
	s.t.Helper()
	s.configure(map[string]any{"lifetime": "24h"})
	s.settled(3, 3)
}

// rollOut changes an argument, which restarts all replicas one by one.
func (s *sandbox) rollOut(value string) {
	s.t.Helper()
	s.merge("extraArgs", map[string]any{"event-ttl": value})
	s.waitFor("all pods have the argument", func() (bool, string) {
		return s.podsWith("--event-ttl="+value) == 3, "not yet"
	})
	s.settled(3, 3)
}

// upgradeImage changes the image. A sandbox always runs its own binary, whatever the name of the image.
func (s *sandbox) upgradeImage() {
	s.t.Helper()
	image := "quorate:second"
	if s.onCluster {
		if image = os.Getenv("QUORATE_CLUSTER_IMAGE"); image == "" {
			s.t.Skip("QUORATE_CLUSTER_IMAGE is not set")
		}
	}
	s.run(s.management, "patch", "-n", "default", "apiservercluster/demo", "--type=merge", "-p",
		fmt.Sprintf(`{"spec":{"image":%q}}`, image))
	s.waitFor("all pods have the image", func() (bool, string) {
		images := s.images()
		return len(images) == 3 && !slices.ContainsFunc(images, func(i string) bool { return i != image }), fmt.Sprint(images)
	})
	s.settled(3, 3)
}

// images returns the images of demo's pods.
func (s *sandbox) images() []string {
	s.t.Helper()
	pods := must(s.pods.CoreV1().Pods("default").List(s.t.Context(),
		metav1.ListOptions{LabelSelector: "quorate.dev/cluster=demo"}))(s.t)
	var images []string
	for _, pod := range pods.Items {
		images = append(images, pod.Spec.Containers[0].Image)
	}
	return images
}

// evict evicts a pod, like a drain of its node, and waits for its successor.
func (s *sandbox) evict(pod string) {
	s.t.Helper()
	s.allowDisruption()
	pods := s.pods.CoreV1().Pods("default")
	before := must(pods.Get(s.t.Context(), pod, metav1.GetOptions{}))(s.t).UID
	check(s.t, pods.EvictV1(s.t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pod}}))
	s.waitFor("the successor of "+pod, func() (bool, string) {
		current, err := pods.Get(s.t.Context(), pod, metav1.GetOptions{})
		return err == nil && current.UID != before && ready(current), "not ready"
	})
	s.settled(3, 3)
}

// allowDisruption sets the status of demo's disruption budget in a sandbox, which has no disruption controller.
func (s *sandbox) allowDisruption() {
	s.t.Helper()
	if s.onCluster {
		return
	}
	budgets := s.pods.PolicyV1().PodDisruptionBudgets("default")
	for _, b := range must(
		budgets.List(s.t.Context(), metav1.ListOptions{LabelSelector: "quorate.dev/cluster=demo"}),
	)(s.t).Items {
		b.Status = policyv1.PodDisruptionBudgetStatus{
			ObservedGeneration: b.Generation, DisruptionsAllowed: 1, CurrentHealthy: 3, DesiredHealthy: 2, ExpectedPods: 3,
		}
		must(budgets.UpdateStatus(s.t.Context(), &b, metav1.UpdateOptions{}))(s.t)
	}
}
