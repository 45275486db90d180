package reconcile

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/test/upstream"
)

// seeds returns the seeds of random sequences: a few, or as many as QUORATE_HOSTILE says.
func seeds(t *testing.T, short int) int {
	text := os.Getenv("QUORATE_HOSTILE")
	if text == "" {
		return short
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("QUORATE_HOSTILE: %v", err)
	}
	return n
}

// TestHostileNeighbours disturbs a cluster at random: pods, claims and Secrets are deleted or edited, labels are
// removed, processes are suspended, writes are rejected, a second operator acts, and an operator pauses before a write.
// No write of an operator violates an invariant, and after the end of the disturbances the cluster matches its spec.
func TestHostileNeighbours(t *testing.T) {
	upstream.NeedsTime(t)
	for seed := range int64(seeds(t, 3)) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := newSimulation(t, seed)
			w.launch(3)
			for range 40 {
				w.disturb()
				if w.random.Intn(5) == 0 {
					w.operate(1)
				} else {
					w.operate(0)
				}
				w.check()
			}
			w.settle()
			w.check()
		})
	}
}

// disturb causes a disturbance from time to time. A disturbance alone never loses the quorum.
func (w *simulation) disturb() {
	if w.random.Intn(3) != 0 {
		return
	}
	disturbances := []func() string{
		w.deletePod, w.deleteClaim, w.deleteClaimAndPod, w.deleteSecret, w.editSecretAtRandom, w.stripLabels,
		w.freeze, w.thaw, w.refuse, w.allow, w.scaleAtRandom, w.roll, w.wait, w.pauseOperator, w.pauseChange,
	}
	if action := disturbances[w.random.Intn(len(disturbances))](); action != "" {
		w.record(false, action)
	}
}

// pick returns a random object of a list, or nil if the list is empty.
func (w *simulation) pick(list client.ObjectList) client.Object {
	w.must(w.raw.List(w.t.Context(), list))
	var all []client.Object
	switch typed := list.(type) {
	case *corev1.PodList:
		for i := range typed.Items {
			all = append(all, &typed.Items[i])
		}
	case *corev1.PersistentVolumeClaimList:
		for i := range typed.Items {
			all = append(all, &typed.Items[i])
		}
	case *corev1.SecretList:
		for i := range typed.Items {
			all = append(all, &typed.Items[i])
		}
	}
	if len(all) == 0 {
		return nil
	}
	return all[w.random.Intn(len(all))]
}

// quorumSurvivesWithout reports whether enough members are left if the process and the data of a pod are lost.
func (w *simulation) quorumSurvivesWithout(name string) bool {
	voters, healthy := w.etcd.count()
	m := w.etcd.named(name)
	if m == nil || m.learner || w.etcd.running(m) == nil {
		return w.etcd.formed
	}
	// A missing claim counts as lost: the processes of such members must not be the last ones with the data.
	for _, other := range w.etcd.members {
		err := w.raw.Get(w.t.Context(), client.ObjectKey{Namespace: "ns", Name: other.name}, &corev1.PersistentVolumeClaim{})
		if other.name != name && !other.learner && err != nil && w.etcd.running(other) != nil {
			healthy--
		}
	}
	return w.etcd.formed && healthy-1 > voters/2
}

func (w *simulation) deletePod() string {
	pod := w.pick(&corev1.PodList{})
	if pod == nil || !w.quorumSurvivesWithout(pod.GetName()) {
		return ""
	}
	w.must(w.delete(w.t.Context(), pod, nil))
	return "delete Pod " + pod.GetName()
}

func (w *simulation) deleteClaim() string {
	claim := w.pick(&corev1.PersistentVolumeClaimList{})
	if claim == nil || !w.quorumSurvivesWithout(claim.GetName()) {
		return ""
	}
	w.must(w.raw.Delete(w.t.Context(), claim))
	return "delete claim " + claim.GetName()
}

func (w *simulation) deleteClaimAndPod() string {
	claim := w.pick(&corev1.PersistentVolumeClaimList{})
	if claim == nil || !w.quorumSurvivesWithout(claim.GetName()) {
		return ""
	}
	w.must(w.raw.Delete(w.t.Context(), claim))
	pod := &corev1.Pod{}
	if err := w.raw.Get(w.t.Context(), client.ObjectKeyFromObject(claim), pod); err == nil {
		w.must(w.delete(w.t.Context(), pod, nil))
	}
	return "delete claim and Pod " + claim.GetName()
}

func (w *simulation) deleteSecret() string {
	secret := w.pick(&corev1.SecretList{})
	if secret == nil {
		return ""
	}
	w.must(w.raw.Delete(w.t.Context(), secret))
	return "delete Secret " + secret.GetName()
}

func (w *simulation) editSecretAtRandom() string {
	secret, ok := w.pick(&corev1.SecretList{}).(*corev1.Secret)
	if !ok {
		return ""
	}
	for key := range secret.Data {
		secret.Data[key] = invalidData
	}
	w.must(w.raw.Update(w.t.Context(), secret))
	return "edit Secret " + secret.Name
}

func (w *simulation) stripLabels() string {
	object := w.pick(&corev1.PodList{})
	if w.random.Intn(2) == 0 {
		object = w.pick(&corev1.PersistentVolumeClaimList{})
	}
	if object == nil {
		return ""
	}
	object.SetLabels(nil)
	w.must(w.raw.Update(w.t.Context(), object))
	return "remove the labels of " + object.GetName()
}

func (w *simulation) freeze() string {
	pod := w.pick(&corev1.PodList{})
	if pod == nil || !w.quorumSurvivesWithout(pod.GetName()) {
		return ""
	}
	if p := w.etcd.processes[string(pod.GetUID())]; p != nil {
		p.frozen = true
	}
	return "freeze " + pod.GetName()
}

func (w *simulation) thaw() string {
	for _, p := range w.etcd.processes {
		p.frozen = false
	}
	return "thaw"
}

// refuse makes the hosting cluster reject writes of some kinds, as a webhook or a quota would.
func (w *simulation) refuse() string {
	kinds := []string{"*v1.Pod", "*v1.PersistentVolumeClaim", "*v1.Secret", "*v1.Service", "*v1alpha1.ApiServerCluster"}
	verbs := []string{"create", "update", "patch", "delete", "status"}
	kind, verb := kinds[w.random.Intn(len(kinds))], verbs[w.random.Intn(len(verbs))]
	w.refused = func(v string, object client.Object) error {
		if v != verb || fmt.Sprintf("%T", object) != kind {
			return nil
		}
		return apierrors.NewForbidden(schema.GroupResource{}, object.GetName(), errors.New("exceeded quota"))
	}
	return "refuse to " + verb + " " + kind
}

func (w *simulation) allow() string {
	w.refused = nil
	return "refuse nothing"
}

func (w *simulation) scaleAtRandom() string {
	object := w.get()
	object.Spec.Replicas = ptr.To([]int32{1, 3, 4, 5}[w.random.Intn(4)])
	object.Generation++
	w.must(w.raw.Update(w.t.Context(), object))
	return fmt.Sprintf("scale to %d", *object.Spec.Replicas)
}

func (w *simulation) roll() string {
	object := w.get()
	object.Spec.ExtraArgs = map[string]string{"max-requests-inflight": fmt.Sprint(100 + w.random.Intn(100))}
	object.Generation++
	w.must(w.raw.Update(w.t.Context(), object))
	return "change an argument"
}

func (w *simulation) wait() string {
	w.clock.Step([]time.Duration{15 * time.Second, time.Minute, 6 * time.Minute, 11 * time.Minute}[w.random.Intn(4)])
	return "wait"
}

// pauseOperator runs the other operator before the next write of an operator, for at most a little longer than the
// leader lease lasts.
func (w *simulation) pauseOperator() string {
	w.pause = w.interleaving()
	return "pause an operator before its next write"
}

// pauseChange runs the other operator in the same way before the next membership change.
func (w *simulation) pauseChange() string {
	interleaving := w.interleaving()
	w.etcd.before = func() {
		w.interleavingMutex.Lock()
		defer w.interleavingMutex.Unlock()
		interleaving()
	}
	return "pause an operator before its next membership change"
}

func (w *simulation) interleaving() func() {
	rounds := 1 + w.random.Intn(12)
	return func() {
		w.record(false, "paused")
		w.interleavings++
		other := 1 - w.acting
		for begin := time.Now(); rounds > 0 && time.Since(begin) < 2*time.Second; rounds-- { // less than etcd's timeout
			w.reconcileBy(other)
			w.proceed()
		}
		w.interleavings--
		for _, server := range w.ended {
			go server.Stop()
		}
		w.ended = nil
		w.record(false, "resumed")
	}
}
