package reconcile

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
)

// restart deletes the pod of a member, so that another one with its volume starts.
func (w *simulation) restart(name string) {
	w.must(w.raw.Delete(w.t.Context(), w.podNamed(name)))
	w.kill()
	w.record(false, "restart "+name)
}

// freezeMember stops the process of a member without its pod, as on a node that is partitioned.
func (w *simulation) freezeMember(name string) {
	w.etcd.mutex.Lock()
	defer w.etcd.mutex.Unlock()
	for _, p := range w.etcd.processes {
		if p.pod == name {
			p.frozen = true
		}
	}
}

// replace lets the operator replace a member that does not run.
func (w *simulation) replace(name string) {
	w.operate(0)
	w.record(false, "the kubelets have started pods")
	w.clock.Step(6 * time.Minute)
	for range 200 {
		w.operate(0)
		w.clock.Step(time.Second)
		if voters, healthy := w.etcd.count(); w.etcd.named(name) == nil && voters == 3 && healthy == 3 {
			break
		}
	}
	w.settle()
}

func (w *simulation) claimNamed(name string) *corev1.PersistentVolumeClaim {
	claim := &corev1.PersistentVolumeClaim{}
	err := w.raw.Get(w.t.Context(), client.ObjectKey{Namespace: "ns", Name: name}, claim)
	if apierrors.IsNotFound(err) {
		return nil
	}
	w.must(err)
	return claim
}

func (w *simulation) degradedReason() (reason, message string) {
	c := meta.FindStatusCondition(w.get().Status.Conditions, v1alpha1.Degraded)
	if c == nil || c.Status != metav1.ConditionTrue {
		return "", ""
	}
	return c.Reason, c.Message
}

// TestVolumeOfAbsentVoter: the volume of a voter that was replaced while it did not run is deleted only if all other
// members have run without interruption since it was last healthy. Otherwise it is kept, and Degraded names it until
// the user deletes it.
func TestVolumeOfAbsentVoter(t *testing.T) {
	for name, c := range map[string]struct {
		before, during func(*simulation) // before the member is absent, and while it is
		kept           bool
	}{
		"others run":       {},
		"another restarts": {during: func(w *simulation) { w.restart("demo-0") }, kept: true},
		"another has restarted and is ready before": {before: func(w *simulation) {
			w.restart("demo-0")
			w.settle()
		}},
		"another restarts, of a release that reports no runs": {
			before: func(w *simulation) { w.etcd.withoutRuns = true },
			during: func(w *simulation) { w.restart("demo-0") },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newSimulation(t, 1)
			w.launch(3)
			if c.before != nil {
				c.before(w)
			}
			w.operate(0)
			w.freezeMember("demo-2")
			if c.during != nil {
				c.during(w)
			}
			w.replace("demo-2")
			w.check()
			claim := w.claimNamed("demo-2")
			reason, message := w.degradedReason()
			if !c.kept {
				if claim != nil || reason != "" {
					t.Fatalf("claim %v, Degraded %s: %s", claim, reason, message)
				}
				return
			}
			if claim == nil || reason != v1alpha1.ReasonVolumeNotCompared || !strings.Contains(message, "demo-2") {
				t.Fatalf("claim %v, Degraded %s: %s", claim, reason, message)
			}
			w.must(w.raw.Delete(t.Context(), claim))
			w.settle()
			if reason, message := w.degradedReason(); reason != "" {
				t.Errorf("after the claim was deleted: Degraded %s: %s", reason, message)
			}
		})
	}
}

// TestAbsentVoterReturns: a mark is removed from the claim of a voter that returns before it is replaced.
func TestAbsentVoterReturns(t *testing.T) {
	for _, withoutRuns := range []bool{false, true} {
		t.Run(fmt.Sprintf("release without runs: %t", withoutRuns), func(t *testing.T) {
			t.Parallel()
			w := newSimulation(t, 1)
			w.etcd.withoutRuns = withoutRuns
			w.launch(3)
			claim := w.claimNamed("demo-2")
			claim.Annotations["quorate.dev/not-compared"] = "a reason"
			w.must(w.raw.Update(t.Context(), claim))
			w.settle()
			w.operate(0)
			if text := w.claimNamed("demo-2").Annotations["quorate.dev/not-compared"]; text != "" {
				t.Errorf("a healthy member has the mark %q", text)
			}
		})
	}
}

// TestDifferentData: Degraded says which members have different data.
func TestDifferentData(t *testing.T) {
	t.Parallel()
	w := newSimulation(t, 1)
	w.launch(3)
	w.etcd.mutex.Lock()
	w.etcd.difference = "at revision 7, the data of demo-0 differs from that of demo-1"
	w.etcd.mutex.Unlock()
	w.operate(0)
	reason, message := w.degradedReason()
	if reason != v1alpha1.ReasonDataDiffers ||
		!strings.Contains(message, "demo-2 reports: at revision 7, the data of demo-0 differs") {
		t.Errorf("Degraded %s: %s", reason, message)
	}
}
