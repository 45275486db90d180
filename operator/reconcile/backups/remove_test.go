package backups

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
)

// TestDeletionThatCannotStart checks that an event reports why the data of a deleted backup cannot be deleted, while
// the finalizer keeps the backup.
func TestDeletionThatCannotStart(t *testing.T) {
	e := newEnvironment(t)
	e.create(v1alpha1.ApiServerBackupSpec{ClusterName: "demo", Destination: volume, DeletionPolicy: v1alpha1.BackupDelete})
	b := e.reconcile()
	e.must(e.client.Delete(t.Context(), b))
	e.must(e.client.Delete(t.Context(), e.pod("b-try1")))
	e.reconcile()
	pod := e.pod("b-delete")
	pod.Status.Phase = corev1.PodPending
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{
		Waiting: &corev1.ContainerStateWaiting{Reason: "CreateContainerConfigError", Message: `secret "s3" not found`},
	}}}
	e.must(e.client.Status().Update(t.Context(), pod))
	e.clock.Step(299 * time.Second)
	e.reconcile()
	events := len(e.events)
	e.clock.Step(2 * time.Second)
	e.reconcile()
	if got := e.events[events:]; len(got) != 1 || !strings.Contains(got[0], `DataDeletionFailed`) ||
		!strings.Contains(got[0], `secret "s3" not found`) {
		t.Errorf("events %q", got)
	}
	if pod := e.pod("b-delete"); pod.Status.Phase != "" {
		t.Errorf("the pod was not replaced: %+v", pod.Status)
	}
}

// TestDeletionBesideForeignPods checks that pods of other owners with the names of a backup's pods do not prevent the
// deletion of the backup.
func TestDeletionBesideForeignPods(t *testing.T) {
	e := newEnvironment(t)
	e.create(v1alpha1.ApiServerBackupSpec{ClusterName: "none", Destination: volume})
	b := e.reconcile()
	for _, name := range []string{desired.BackupPodName(b), desired.DeletePodName(b)} {
		e.must(e.client.Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}))
	}
	e.must(e.client.Delete(t.Context(), b))
	if b := e.reconcile(); b != nil {
		t.Errorf("the backup still exists: %+v", b)
	}
}

// TestRetentionKeepsBackupsThatAreRestored checks that an expired backup is deleted only when no cluster needs it for a
// restore.
func TestRetentionKeepsBackupsThatAreRestored(t *testing.T) {
	e := newEnvironment(t)
	r := &ScheduleReconciler{Client: e.client, Reader: e.client, Recorder: e, Clock: e.clock}
	e.must(e.client.Create(t.Context(), &v1alpha1.ApiServerBackupSchedule{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "hourly", CreationTimestamp: metav1.NewTime(e.clock.Now())},
		Spec: v1alpha1.ApiServerBackupScheduleSpec{
			Schedule: "0 * * * *", Retention: v1alpha1.BackupRetention{Count: ptr.To[int32](1)},
			Template: v1alpha1.BackupTemplate{ClusterName: "demo", Destination: volume},
		},
	}))
	for i, name := range []string{"restored", "recovered", "unused", "newest"} {
		b := &v1alpha1.ApiServerBackup{ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: name, Labels: map[string]string{desired.ScheduleLabel: "hourly"},
		}}
		e.must(e.client.Create(t.Context(), b))
		b.Status.Phase = v1alpha1.BackupCompleted
		b.Status.CompletionTime = &metav1.Time{Time: e.clock.Now().Add(time.Duration(i-10) * time.Minute)}
		e.must(e.client.Status().Update(t.Context(), b))
	}
	from := func(name string) v1alpha1.RestoreSource { return v1alpha1.RestoreSource{BackupName: name} }
	restoring := &v1alpha1.ApiServerCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "restoring"}}
	restoring.Spec.Restore = &v1alpha1.Restore{From: from("restored")}
	e.must(e.client.Create(t.Context(), restoring))
	recovering := &v1alpha1.ApiServerCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "recovering"}}
	recovering.Spec.Recovery = &v1alpha1.Recovery{RequestID: "1", From: ptr.To(from("recovered"))}
	recovering.Status.Recovery = &v1alpha1.RecoveryStatus{
		Request: *recovering.Spec.Recovery, Stage: v1alpha1.RecoveryRestoring,
	}
	e.must(e.client.Create(t.Context(), recovering))
	expect := func(want ...string) {
		t.Helper()
		_, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKey{Namespace: "ns", Name: "hourly"}})
		e.must(err)
		var list v1alpha1.ApiServerBackupList
		e.must(e.client.List(t.Context(), &list))
		var names []string
		for _, b := range list.Items {
			names = append(names, b.Name)
		}
		if !slices.Equal(names, want) {
			t.Errorf("backups %v, want %v", names, want)
		}
	}
	expect("newest", "recovered", "restored")
	recovering.Status.Recovery.Stage = v1alpha1.RecoveryStarting
	e.must(e.client.Update(t.Context(), recovering))
	restoring.Status.Restore = &v1alpha1.RestoreStatus{Completed: true}
	e.must(e.client.Update(t.Context(), restoring))
	expect("newest")
}
