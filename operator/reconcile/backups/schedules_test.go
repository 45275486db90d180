package backups

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
)

func TestSchedule(t *testing.T) {
	e := newEnvironment(t)
	r := &ScheduleReconciler{Client: e.client, Reader: e.client, Recorder: e, Clock: e.clock}
	key := client.ObjectKey{Namespace: "ns", Name: "hourly"}
	e.must(e.client.Create(t.Context(), &v1alpha1.ApiServerBackupSchedule{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "hourly", CreationTimestamp: metav1.NewTime(e.clock.Now())},
		Spec: v1alpha1.ApiServerBackupScheduleSpec{
			Schedule: "0 * * * *", Retention: v1alpha1.BackupRetention{Count: ptr.To[int32](2)},
			Template: v1alpha1.BackupTemplate{ClusterName: "demo", Destination: volume},
		},
	}))
	step := func() []v1alpha1.ApiServerBackup {
		t.Helper()
		for range 2 { // a repetition creates no second backup
			_, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: key})
			e.must(err)
		}
		var list v1alpha1.ApiServerBackupList
		e.must(e.client.List(t.Context(), &list))
		return list.Items
	}
	if got := step(); len(got) != 0 {
		t.Fatalf("%d backups before the first scheduled time", len(got))
	}
	const success = "quorate_backup_schedule_last_success_timestamp_seconds"
	e.must(testutil.CollectAndCompare(Collector{e.client, e.clock}, strings.NewReader(`
# HELP quorate_backup_schedule_last_success_timestamp_seconds Completion time of the newest completed backup of an ApiServerBackupSchedule, in seconds since 1970; 0 if there is none.
# TYPE quorate_backup_schedule_last_success_timestamp_seconds gauge
quorate_backup_schedule_last_success_timestamp_seconds{cluster="demo",namespace="ns",schedule="hourly"} 0
`), success))
	for n := range 4 {
		e.clock.Step(time.Hour)
		got := step()
		if want := min(n+1, 3); len(got) != want { // two completed backups and the new one
			t.Fatalf("%d backups after %d hours, want %d; events %q", len(got), n+1, want, e.events)
		}
		for i := range got {
			if !got[i].Finished() {
				got[i].Status.Phase, got[i].Status.CompletionTime = v1alpha1.BackupCompleted, &metav1.Time{Time: e.clock.Now()}
				e.must(e.client.Status().Update(t.Context(), &got[i]))
			}
		}
	}
	var s v1alpha1.ApiServerBackupSchedule
	step()
	e.must(e.client.Get(t.Context(), key, &s))
	if s.Status.NextScheduleTime.Hour() != 5 || s.Status.LastSuccessfulTime.Hour() != 4 || s.Status.Active != 0 {
		t.Errorf("%+v", s.Status)
	}
	e.must(testutil.CollectAndCompare(Collector{e.client, e.clock}, strings.NewReader(fmt.Sprintf(`
# HELP quorate_backup_schedule_last_success_timestamp_seconds Completion time of the newest completed backup of an ApiServerBackupSchedule, in seconds since 1970; 0 if there is none.
# TYPE quorate_backup_schedule_last_success_timestamp_seconds gauge
quorate_backup_schedule_last_success_timestamp_seconds{cluster="demo",namespace="ns",schedule="hourly"} %d
`, e.clock.Now().Unix())), success))
	for _, b := range step() { // times in the future; later there are no backups
		b.Status.SnapshotTime = &metav1.Time{Time: e.clock.Now().Add(100 * time.Hour)}
		b.Status.CompletionTime, b.Status.StartTime = b.Status.SnapshotTime, b.Status.SnapshotTime
		e.must(e.client.Status().Update(t.Context(), &b))
	}
	expectNone := func(message string) {
		t.Helper()
		step()
		e.must(e.client.Get(t.Context(), key, &s))
		c := meta.FindStatusCondition(s.Status.Conditions, v1alpha1.BackupReady)
		if c.Reason != v1alpha1.ReasonNoCompletedBackup || !strings.Contains(c.Message, message) ||
			s.Status.LastSuccessfulTime != nil {
			t.Errorf("%+v, last %s", c, s.Status.LastSuccessfulTime)
		}
	}
	expectNone("there is no completed backup, apart from 2 with a time in the future")
	if n := testutil.CollectAndCount(
		Collector{e.client, e.clock}, "quorate_backup_last_success_timestamp_seconds",
	); n != 0 {
		t.Errorf("%d times of the last success are in the future", n)
	}
	e.must(e.client.DeleteAllOf(t.Context(), &v1alpha1.ApiServerBackup{}, client.InNamespace("ns")))
	expectNone("there is no completed backup")
	s.Spec.TimeZone = "Nowhere"
	e.must(e.client.Update(t.Context(), &s))
	step()
	e.must(e.client.Get(t.Context(), key, &s))
	if c := meta.FindStatusCondition(s.Status.Conditions, v1alpha1.ScheduleReady); c.Status != metav1.ConditionFalse ||
		c.Reason != "InvalidSpec" {
		t.Errorf("%+v", c)
	}
	// While no backup is created, the condition must not keep the reason of an earlier one.
	if c := meta.FindStatusCondition(s.Status.Conditions, v1alpha1.BackupReady); c.Status != metav1.ConditionFalse ||
		c.Reason != "InvalidSpec" || !strings.Contains(c.Message, "Nowhere") {
		t.Errorf("%+v", c)
	}
}

// TestScheduleWithoutBackups checks that the condition, the metric and one event report that no backup is completed.
func TestScheduleWithoutBackups(t *testing.T) {
	e := newEnvironment(t)
	r := &ScheduleReconciler{Client: e.client, Reader: e.client, Recorder: e, Clock: e.clock}
	key := client.ObjectKey{Namespace: "ns", Name: "hourly"}
	e.must(e.client.Create(t.Context(), &v1alpha1.ApiServerBackupSchedule{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "hourly"},
		Spec: v1alpha1.ApiServerBackupScheduleSpec{
			Schedule: "0 * * * *", Template: v1alpha1.BackupTemplate{ClusterName: "demo", Destination: volume},
		},
	}))
	for wait, want := range []metav1.ConditionStatus{metav1.ConditionTrue, metav1.ConditionTrue, metav1.ConditionFalse} {
		var s v1alpha1.ApiServerBackupSchedule
		result, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: key})
		e.must(err)
		e.must(e.client.Get(t.Context(), key, &s))
		if got := meta.FindStatusCondition(s.Status.Conditions, v1alpha1.BackupReady); got.Status != want ||
			result.RequeueAfter > retentionInterval {
			t.Errorf("after %d hours: %+v, requeue after %s", wait, got, result.RequeueAfter)
		}
		e.clock.Step(time.Hour + time.Second)
	}
	registry := prometheus.NewRegistry()
	e.must(registry.Register(Collector{e.client, e.clock}))
	e.must(testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP quorate_backup_ready Whether the newest completed backup of an ApiServerBackupSchedule is current (1) or not (0).
# TYPE quorate_backup_ready gauge
quorate_backup_ready{cluster="demo",namespace="ns",schedule="hourly"} 0
`), "quorate_backup_ready"))
	overdue := 0
	for _, event := range e.events {
		if strings.HasPrefix(event, "NoCompletedBackup: ") {
			overdue++
		}
	}
	if overdue != 1 {
		t.Errorf("%d events: %q", overdue, e.events)
	}
}
