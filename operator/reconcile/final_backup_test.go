package reconcile

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/reconcile/deletion"
)

// finalBackup is a spec with a final backup.
func finalBackup() v1alpha1.Deletion {
	return v1alpha1.Deletion{FinalBackup: &v1alpha1.FinalBackup{
		Destination: v1alpha1.BackupDestination{Volume: &v1alpha1.VolumeDestination{ClaimName: "backups"}},
	}}
}

// backups returns the backups in the namespace.
func (w *simulation) backups() []v1alpha1.ApiServerBackup {
	w.t.Helper()
	var list v1alpha1.ApiServerBackupList
	w.must(w.raw.List(w.t.Context(), &list))
	return list.Items
}

// finish sets the phase of the only backup in the namespace.
func (w *simulation) finish(phase v1alpha1.BackupPhase, message string) {
	w.t.Helper()
	all := w.backups()
	if len(all) != 1 || len(all[0].OwnerReferences) > 0 || all[0].Spec.ClusterName != "demo" {
		w.t.Fatalf("the backups are %+v", all)
	}
	all[0].Status.Phase = phase
	meta.SetStatusCondition(&all[0].Status.Conditions, metav1.Condition{
		Type: v1alpha1.BackupComplete, Status: metav1.ConditionFalse, Reason: "Test", Message: message,
	})
	w.must(w.raw.Update(w.t.Context(), &all[0]))
}

// TestFinalBackup checks that nothing is deleted before the final backup is completed, that a failed one can be
// repeated, and that the ApiServerBackup outlives the cluster.
func TestFinalBackup(t *testing.T) {
	w := newSimulation(t, 1)
	w.launch(3)
	w.change(withDeletion(finalBackup()))
	w.settle()
	if all := w.backups(); len(all) > 0 {
		t.Errorf("there are backups before the deletion: %+v", all)
	}
	w.must(w.raw.Delete(t.Context(), w.get()))
	w.expectRunning(v1alpha1.ReasonWaitingForFinalBackup, "Waiting for final backup demo-final-demo")
	w.finish(v1alpha1.BackupRunning, "Secret s3 does not exist")
	w.expectRunning(v1alpha1.ReasonWaitingForFinalBackup, "Secret s3 does not exist")
	w.finish(v1alpha1.BackupFailed, "no space left")
	w.expectRunning(v1alpha1.ReasonFinalBackupFailed, "delete ApiServerBackup demo-final-demo",
		"remove spec.deletion.finalBackup", "no space left")
	w.must(w.raw.Delete(t.Context(), &w.backups()[0]))
	w.expectRunning(v1alpha1.ReasonWaitingForFinalBackup)
	w.check()
	w.finish(v1alpha1.BackupCompleted, "Stored")
	w.deleted("demo")
	w.expectObjects("")
	if all := w.backups(); len(all) != 1 {
		t.Errorf("the final backup is gone: %+v", all)
	}
}

// TestFinalBackupOlderThanDeletion checks that a completed backup with the name of the final one does not count if it
// was created before the deletion was requested, and that the operator repeats the backup that it has created if clocks
// differ.
func TestFinalBackupOlderThanDeletion(t *testing.T) {
	w := newSimulation(t, 1)
	w.launch(1)
	w.change(withDeletion(finalBackup()))
	w.settle()
	former := &v1alpha1.ApiServerBackup{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: deletion.FinalBackupName(w.get()),
		CreationTimestamp: metav1.NewTime(time.Now().Add(-time.Hour)),
	}}
	former.Spec.ClusterName = "demo"
	w.must(w.raw.Create(t.Context(), former))
	w.finish(v1alpha1.BackupCompleted, "Stored")
	w.must(w.raw.Delete(t.Context(), w.get()))
	w.expectRunning(v1alpha1.ReasonFinalBackupBlocked, "older than the request", "delete it")
	w.must(w.raw.Delete(t.Context(), &w.backups()[0]))
	w.refused = func(verb string, object client.Object) error {
		if _, backup := object.(*v1alpha1.ApiServerBackup); verb == "create" && backup {
			object.SetCreationTimestamp(metav1.NewTime(time.Now().Add(-time.Hour)))
		}
		return nil
	}
	w.expectRunning(v1alpha1.ReasonWaitingForFinalBackup)
	if all := w.backups(); len(all) > 0 {
		t.Errorf("backups that appear to be older than the deletion are kept: %+v", all)
	}
	w.refused = nil
	w.expectRunning(v1alpha1.ReasonWaitingForFinalBackup)
	w.finish(v1alpha1.BackupCompleted, "Stored")
	w.deleted("demo")
	w.expectObjects("")
}

// TestHostileFinalBackup deletes clusters with a final backup while the operator crashes after each possible write,
// also after the user has deleted the completed backup in the middle of the deletion. Each cluster is deleted, with one
// backup.
func TestHostileFinalBackup(t *testing.T) {
	for n := range crashes(t, 0, 1, 4, 12) {
		w := newSimulation(t, int64(n))
		w.launch(1)
		w.change(withDeletion(finalBackup()))
		w.settle()
		w.must(w.raw.Delete(t.Context(), w.get()))
		recovered := w.crash(n)
		w.operate(0)
		more := recovered()
		w.operate(1)
		w.operate(0)
		w.finish(v1alpha1.BackupCompleted, "Stored")
		recovered = w.crash(n)
		w.operate(1)
		more = recovered() || more
		if w.exists() && w.get().DeletionStarted() {
			w.must(w.raw.Delete(t.Context(), &w.backups()[0]))
		}
		w.deleted("demo")
		w.expectObjects("")
		if !more {
			return
		}
	}
}

// TestFinalBackupImpossible checks clusters that cannot be backed up: their deletion waits until the user decides,
// unless they have no data or their namespace is being deleted.
func TestFinalBackupImpossible(t *testing.T) {
	t.Run("hibernated", func(t *testing.T) {
		w := newSimulation(t, 1)
		w.launch(1)
		w.change(func(c *v1alpha1.ApiServerCluster) { c.Spec.Deletion, c.Spec.Replicas = finalBackup(), ptr.To[int32](0) })
		w.operate(0)
		w.must(w.raw.Delete(t.Context(), w.get()))
		for range 4 {
			w.operate(0)
		}
		if got := w.deletingCondition(); !strings.Contains(got, "FinalBackupBlocked") ||
			!strings.Contains(got, "scale it up") {
			t.Error(got)
		}
		w.change(func(c *v1alpha1.ApiServerCluster) { c.Spec.Replicas = ptr.To[int32](1) })
		w.settle()
		w.expectRunning(v1alpha1.ReasonWaitingForFinalBackup)
	})
	t.Run("without quorum", func(t *testing.T) {
		w := newSimulation(t, 1)
		w.launch(1)
		w.change(withDeletion(finalBackup()))
		w.settle()
		for _, p := range w.etcd.processes {
			p.frozen = true
		}
		for range 40 {
			w.operate(0)
		}
		w.must(w.raw.Delete(t.Context(), w.get()))
		w.operate(0)
		if got := w.deletingCondition(); !strings.Contains(got, "etcd has no quorum") || len(w.backups()) > 0 {
			t.Error(got, w.backups())
		}
		w.change(withDeletion(v1alpha1.Deletion{})) // the user deletes the cluster without a backup
		w.deleted("demo")
		w.expectObjects("")
	})
	t.Run("without data", func(t *testing.T) {
		w := newSimulation(t, 1)
		object := &v1alpha1.ApiServerCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "demo", UID: "demo"}}
		object.Spec.Deletion, object.Spec.Replicas = finalBackup(), ptr.To[int32](3)
		object.Spec.Deletion.Policy = v1alpha1.RetainData
		w.must(w.raw.Create(t.Context(), object))
		w.reconcileBy(0)
		w.must(w.raw.Delete(t.Context(), w.get()))
		w.deleted("demo")
		w.expectObjects("")
	})
	for _, replicas := range []int32{1, 0} {
		t.Run(fmt.Sprintf("terminating namespace, %d replicas", replicas), func(t *testing.T) {
			w := newSimulation(t, 1)
			w.launch(1)
			w.change(func(c *v1alpha1.ApiServerCluster) { c.Spec.Deletion, c.Spec.Replicas = finalBackup(), ptr.To(replicas) })
			w.operate(0)
			w.must(w.raw.Delete(t.Context(), w.get()))
			w.refused = func(verb string, object client.Object) error {
				if verb != "create" {
					return nil
				}
				err := apierrors.NewForbidden(schema.GroupResource{}, object.GetName(),
					errors.New("the namespace is being terminated"))
				err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
				return err
			}
			w.deleted("demo")
			w.expectObjects("")
		})
	}
}
