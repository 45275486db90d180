package backups

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
)

// TestScheduleOfHibernatedCluster checks that a schedule creates no backups while its cluster is hibernated, because
// all would fail, and one backup when the cluster is started again.
func TestScheduleOfHibernatedCluster(t *testing.T) {
	e := newEnvironment(t)
	r := &ScheduleReconciler{Client: e.client, Reader: e.client, Recorder: e, Clock: e.clock}
	schedule := &v1alpha1.ApiServerBackupSchedule{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "hourly", CreationTimestamp: metav1.NewTime(e.clock.Now())},
		Spec: v1alpha1.ApiServerBackupScheduleSpec{
			Schedule: "0 * * * *", Template: v1alpha1.BackupTemplate{ClusterName: "demo", Destination: volume},
		},
	}
	e.must(e.client.Create(t.Context(), schedule))
	cluster := &v1alpha1.ApiServerCluster{}
	key := client.ObjectKey{Namespace: "ns", Name: "demo"}
	scale := func(replicas int32) {
		e.must(e.client.Get(t.Context(), key, cluster))
		cluster.Spec.Replicas = ptr.To(replicas)
		e.must(e.client.Update(t.Context(), cluster))
	}
	backups := func() []v1alpha1.ApiServerBackup {
		t.Helper()
		requests := r.schedulesOf(t.Context(), cluster)
		if len(requests) != 1 {
			t.Fatalf("a change of the cluster reconciles %v", requests)
		}
		_, err := r.Reconcile(t.Context(), ctrl.Request(requests[0]))
		e.must(err)
		var list v1alpha1.ApiServerBackupList
		e.must(e.client.List(t.Context(), &list))
		return list.Items
	}
	scale(3)
	e.clock.Step(time.Hour)
	first := backups()
	if len(first) != 1 {
		t.Fatalf("%d backups", len(first))
	}
	first[0].Status.Phase, first[0].Status.CompletionTime = v1alpha1.BackupCompleted, &metav1.Time{Time: e.clock.Now()}
	e.must(e.client.Status().Update(t.Context(), &first[0]))
	scale(0)
	e.clock.Step(30 * time.Hour)
	if got := backups(); len(got) != 1 {
		t.Errorf("%d backups of a hibernated cluster", len(got))
	}
	e.must(e.client.Get(t.Context(), client.ObjectKeyFromObject(schedule), schedule))
	if c := meta.FindStatusCondition(schedule.Status.Conditions, v1alpha1.BackupReady); c.Status != metav1.ConditionTrue ||
		c.Reason != v1alpha1.ReasonHibernated {
		t.Errorf("%+v", c)
	}
	scale(3)
	if got := backups(); len(got) != 2 {
		t.Errorf("%d backups of a cluster that was started again", len(got))
	}
}

// TestBackupOfHibernatedClusterWaits checks that the condition of the backup says that the cluster is hibernated.
func TestBackupOfHibernatedClusterWaits(t *testing.T) {
	e := newEnvironment(t)
	cluster := &v1alpha1.ApiServerCluster{}
	e.must(e.client.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "demo"}, cluster))
	cluster.Spec.Replicas = ptr.To[int32](0)
	e.must(e.client.Update(t.Context(), cluster))
	e.create(v1alpha1.ApiServerBackupSpec{ClusterName: "demo", Destination: volume})
	b := e.reconcile()
	c := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.BackupComplete)
	if b.Status.Phase != v1alpha1.BackupPending || c == nil || c.Message != "the ApiServerCluster is hibernated" {
		t.Errorf("%s %+v", b.Status.Phase, c)
	}
}
