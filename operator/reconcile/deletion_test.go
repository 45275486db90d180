package reconcile

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
)

// crash lets an operator write n times. Its further writes fail until the returned function is called, which reports
// whether there were any.
func (w *simulation) crash(n int) (recovered func() bool) {
	crashed := false
	w.refused = func(string, client.Object) error {
		if n--; n < 0 {
			crashed = true
			return errors.New("the operator has crashed")
		}
		return nil
	}
	return func() bool {
		w.refused = nil
		return crashed
	}
}

// crashes returns the numbers of writes after which operators crash: a few, or all if QUORATE_HOSTILE is set.
func crashes(t *testing.T, short ...int) iter.Seq[int] {
	if seeds(t, 0) == 0 {
		return slices.Values(short)
	}
	return func(yield func(int) bool) {
		n := 0
		for yield(n) {
			n++
		}
	}
}

// change updates the spec.
func (w *simulation) change(change func(*v1alpha1.ApiServerCluster)) {
	w.t.Helper()
	object := w.get()
	change(object)
	object.Generation++
	w.must(w.raw.Update(w.t.Context(), object))
}

// exists reports whether the cluster exists.
func (w *simulation) exists() bool {
	err := w.raw.Get(w.t.Context(), demo, &v1alpha1.ApiServerCluster{})
	w.must(client.IgnoreNotFound(err))
	return err == nil
}

// deleted lets the operators act in turn until the cluster is gone, and then collects garbage.
func (w *simulation) deleted(uid types.UID) {
	w.t.Helper()
	for i := range 100 {
		if !w.exists() {
			w.collectGarbage(uid)
			return
		}
		w.operate(i % 2)
	}
	w.t.Fatalf("the cluster is not deleted: %+v\n%s", w.get().Status.Conditions, w.trace(20))
}

// collectGarbage deletes the objects that have an owner reference to a deleted cluster.
func (w *simulation) collectGarbage(uid types.UID) {
	for _, list := range []client.ObjectList{
		&corev1.PodList{}, &corev1.PersistentVolumeClaimList{}, &corev1.SecretList{}, &corev1.ServiceList{},
		&policyv1.PodDisruptionBudgetList{}, &v1alpha1.ApiServerBackupList{},
	} {
		w.must(w.raw.List(w.t.Context(), list))
		w.must(meta.EachListItem(list, func(item runtime.Object) error {
			object := item.(client.Object)
			if !slices.ContainsFunc(object.GetOwnerReferences(), func(o metav1.OwnerReference) bool { return o.UID == uid }) {
				return nil
			}
			return client.IgnoreNotFound(w.delete(w.t.Context(), object, nil))
		}))
	}
}

// deletingCondition returns the reason and the message of the condition Deleting, which is false.
func (w *simulation) deletingCondition() string {
	w.t.Helper()
	c := meta.FindStatusCondition(w.get().Status.Conditions, v1alpha1.Deleting)
	if c == nil || c.Status != metav1.ConditionFalse {
		w.t.Fatalf("the condition Deleting is %+v", c)
	}
	return c.Reason + ": " + c.Message
}

// expectRunning fails unless all members run and the deletion waits for a reason.
func (w *simulation) expectRunning(reason string, parts ...string) {
	w.t.Helper()
	for i := range 6 {
		w.operate(i % 2)
	}
	got := w.deletingCondition()
	for _, part := range append(parts, reason) {
		if !strings.Contains(got, part) {
			w.t.Errorf("the condition Deleting is %q, want %q", got, part)
		}
	}
	if voters, healthy := w.etcd.count(); healthy != voters || voters == 0 {
		w.t.Errorf("%d of %d members run", healthy, voters)
	}
}

func withDeletion(d v1alpha1.Deletion) func(*v1alpha1.ApiServerCluster) {
	return func(c *v1alpha1.ApiServerCluster) { c.Spec.Deletion = d }
}

// TestProtectedCluster checks that a protected cluster whose deletion was accepted keeps running and is repaired, also
// if the client requested a foreground deletion, and that nothing of it is left once the protection is off.
func TestProtectedCluster(t *testing.T) {
	w := newSimulation(t, 1)
	w.launch(3)
	w.change(withDeletion(v1alpha1.Deletion{Protected: true}))
	for range 10 {
		w.operate(0)
	}
	if owners := w.owners(); owners != "" {
		t.Errorf("the garbage collector would delete %s", owners)
	}
	w.change(func(c *v1alpha1.ApiServerCluster) {
		c.Finalizers = append(c.Finalizers, metav1.FinalizerDeleteDependents)
	})
	w.must(w.raw.Delete(t.Context(), w.get()))
	w.expectRunning(v1alpha1.ReasonDeletionProtected, "spec.deletion.protected is true")
	if finalizers := w.get().Finalizers; slices.Contains(finalizers, metav1.FinalizerDeleteDependents) {
		t.Errorf("the garbage collector deletes the dependents: %v", finalizers)
	}
	w.must(w.delete(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "demo-1"}}, nil))
	w.expectRunning(v1alpha1.ReasonDeletionProtected)
	w.check()
	w.change(withDeletion(v1alpha1.Deletion{}))
	w.deleted("demo")
	w.expectObjects("")
}

// owners returns the durable objects that have owner references.
func (w *simulation) owners() string {
	var names []string
	for _, list := range []client.ObjectList{&corev1.PersistentVolumeClaimList{}, &corev1.SecretList{}} {
		w.must(w.raw.List(w.t.Context(), list))
		w.must(meta.EachListItem(list, func(item runtime.Object) error {
			object := item.(client.Object)
			if desired.Durable(w.get(), object) && len(object.GetOwnerReferences()) > 0 {
				names = append(names, object.GetName())
			}
			return nil
		}))
	}
	return strings.Join(names, " ")
}

// expectObjects fails unless the namespace has the objects, one kind a line.
func (w *simulation) expectObjects(want string) {
	w.t.Helper()
	w.results = nil
	w.objects()
	if got := strings.Join(w.results, "\n"); got != want {
		w.t.Errorf("objects:\n%s\nwant:\n%s", got, want)
	}
}

// TestOwnership checks that the durable objects have an owner reference unless spec.deletion is set, and change with
// it.
func TestOwnership(t *testing.T) {
	w := newSimulation(t, 1)
	w.launch(1)
	durable := "demo-0 demo-client-ca demo-etcd-client-ca demo-etcd-peer-ca demo-front-proxy-ca demo-service-account " +
		"demo-serving-ca"
	for _, d := range []v1alpha1.Deletion{
		{}, {Policy: v1alpha1.RetainData}, {}, {Protected: true}, {Policy: v1alpha1.DeleteData},
	} {
		w.change(withDeletion(d))
		w.settle()
		want := durable
		if d.Protected || d.Policy == v1alpha1.RetainData {
			want = ""
		}
		for i := 0; w.owners() != want && i < 20; i++ {
			w.operate(0) // its cache may be stale
		}
		if got := w.owners(); got != want {
			t.Errorf("%+v: %q have owner references, want %q", d, got, want)
		}
	}
}

// TestOwnershipWithoutChanges checks that the durable objects of clusters to which the operator does not apply the spec
// lose their owner references when spec.deletion is set, and do not get them back before the operator applies the spec
// again.
func TestOwnershipWithoutChanges(t *testing.T) {
	for name, stop := range map[string]func(*simulation){
		"paused": func(w *simulation) {
			w.change(func(c *v1alpha1.ApiServerCluster) {
				c.Annotations = map[string]string{
					v1alpha1.PausedUntilAnnotation: w.clock.Now().Add(24 * time.Hour).Format(time.RFC3339),
				}
			})
		},
		"invalid spec": func(w *simulation) {
			w.change(func(c *v1alpha1.ApiServerCluster) { c.Spec.ExtraArgs = map[string]string{"nonsense": "true"} })
		},
		"lost Secret": func(w *simulation) { w.must(w.raw.Delete(w.t.Context(), w.secret("demo-service-account"))) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newSimulation(t, 1)
			w.launch(1)
			stop(w)
			for _, d := range []v1alpha1.Deletion{{Protected: true}, {}} {
				w.change(withDeletion(d))
				for range 10 {
					w.operate(0) // its cache may be stale
				}
				if owners := w.owners(); owners != "" {
					t.Errorf("%+v: the garbage collector would delete %s", d, owners)
				}
			}
		})
	}
}

// unrecorded returns a simulation in which the operators have stopped right after they had created the pods of a
// cluster. Neither the status nor the claims say that the members have run since.
func unrecorded(t *testing.T, d v1alpha1.Deletion) *simulation {
	t.Helper()
	w := newSimulation(t, 1)
	object := &v1alpha1.ApiServerCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "demo", UID: "demo"}}
	object.Spec.Replicas, object.Spec.Deletion = ptr.To[int32](1), d
	w.must(w.raw.Create(t.Context(), object))
	for i := 0; len(w.members()) == 0 && i < 20; i++ {
		w.reconcileBy(0)
	}
	for range 5 {
		w.proceed()
	}
	if voters, healthy := w.etcd.count(); voters != 1 || healthy != 1 || w.get().Bootstrapped() {
		t.Fatalf("%d of %d members run; status %+v", healthy, voters, w.get().Status.Membership)
	}
	return w
}

// TestUnrecordedData checks that the data of members that have run counts, although the operator has recorded nothing
// about them.
func TestUnrecordedData(t *testing.T) {
	t.Run("retained", func(t *testing.T) {
		w := unrecorded(t, v1alpha1.Deletion{Policy: v1alpha1.RetainData})
		members := fmt.Sprint(w.etcd.list())
		w.must(w.raw.Delete(t.Context(), w.get()))
		w.deleted("demo")
		w.expectObjects(retainedObjects)
		object := &v1alpha1.ApiServerCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "demo", UID: "second"}}
		object.Spec.Replicas, object.Spec.Adopt = ptr.To[int32](1), &v1alpha1.Adoption{ClusterUID: "demo"}
		w.must(w.raw.Create(t.Context(), object))
		w.settle()
		w.check()
		if got := fmt.Sprint(w.etcd.list()); got != members {
			t.Errorf("the members are %s, want %s", got, members)
		}
	})
	t.Run("retained without pods", func(t *testing.T) {
		w := unrecorded(t, v1alpha1.Deletion{Policy: v1alpha1.RetainData})
		claim := &corev1.PersistentVolumeClaim{}
		w.must(w.raw.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "demo-0"}, claim))
		claim.Status.Phase = corev1.ClaimBound
		w.must(w.raw.Status().Update(t.Context(), claim))
		w.must(w.delete(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "demo-0"}}, nil))
		w.must(w.raw.Delete(t.Context(), w.get()))
		w.deleted("demo")
		w.expectObjects(retainedObjects)
	})
	t.Run("final backup", func(t *testing.T) {
		w := unrecorded(t, finalBackup())
		w.must(w.raw.Delete(t.Context(), w.get()))
		w.expectRunning(v1alpha1.ReasonWaitingForFinalBackup)
		w.finish(v1alpha1.BackupCompleted, "Stored")
		w.deleted("demo")
		w.expectObjects("")
	})
}

// retainedObjects are the objects that a cluster with one member retains.
const retainedObjects = "= PersistentVolumeClaim demo-0\n= Secret demo-client-ca demo-etcd-client-ca " +
	"demo-etcd-peer-ca demo-front-proxy-ca demo-retained demo-service-account demo-serving-ca"

// TestLostWritesOutliveCluster checks that the claim of a member which has acknowledged writes that the others lack has
// no owner reference, and is kept when a cluster that does not retain its data is deleted, however often the operator
// crashes.
func TestLostWritesOutliveCluster(t *testing.T) {
	for n := range crashes(t, 1, 2, 5) {
		w := newSimulation(t, int64(n))
		w.launch(3)
		for _, process := range w.etcd.processes {
			process.frozen = process.pod == "demo-1"
		}
		claim := &corev1.PersistentVolumeClaim{}
		w.must(w.raw.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "demo-1"}, claim))
		claim.Annotations[desired.LostWritesAnnotation] = "revision 7 against 5"
		w.must(w.raw.Update(t.Context(), claim))
		for range 10 {
			w.operate(0)
		}
		if owners := w.owners(); strings.Contains(owners, "demo-1") || !strings.Contains(owners, "demo-0") {
			t.Errorf("crash after %d writes: %s have owner references", n, owners)
		}
		w.must(w.raw.Delete(t.Context(), w.get()))
		recovered := w.crash(n)
		w.operate(0)
		more := recovered()
		w.deleted("demo")
		w.expectObjects("= PersistentVolumeClaim demo-1")
		if !more {
			return
		}
	}
}

// TestDeletionCannotBeStopped checks that the protection of a cluster whose objects are being deleted comes too late.
func TestDeletionCannotBeStopped(t *testing.T) {
	w := newSimulation(t, 1)
	w.launch(1)
	w.must(w.raw.Delete(t.Context(), w.get()))
	recovered := w.crash(3)
	w.operate(0)
	if !recovered() || !w.get().DeletionStarted() {
		t.Fatal("the deletion has not begun")
	}
	w.change(withDeletion(v1alpha1.Deletion{Protected: true}))
	w.clock.Step(time.Minute)
	w.deleted("demo")
	w.expectObjects("")
}
