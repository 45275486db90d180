package status

import (
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/etcd"
)

func TestSpace(t *testing.T) {
	const mebibyte = 1 << 20
	for name, c := range map[string]struct {
		size, inUse   int64
		alarm         bool
		status        *v1alpha1.DefragmentationStatus
		want, message string
	}{
		"enough": {50, 20, false, nil, "SpaceAvailable", "All databases are below 90% of their quota"},
		"soft quota": {95, 91, false, nil, "SoftQuotaExceeded",
			"API servers refuse to create objects: demo-1 uses 91% of 100 MiB. Delete objects, or raise spec.storage.size"},
		"full": {100, 99, true, nil, "NoSpace",
			"etcd accepts only deletions: demo-1 uses 99% of 100 MiB. Delete objects, or raise spec.storage.size"},
		"unused space": {100, 20, true, &v1alpha1.DefragmentationStatus{Member: "demo-1"}, "NoSpace",
			"etcd accepts only deletions until its databases are defragmented: defragmenting demo-1"},
		"fragmented": {99, 20, false, &v1alpha1.DefragmentationStatus{Member: "demo-1"}, "Fragmented",
			"API servers refuse large objects until the databases are defragmented: defragmenting demo-1"},
		"failed": {100, 20, true, &v1alpha1.DefragmentationStatus{Failures: 1, Message: "demo-1 does not respond"}, "NoSpace",
			"etcd accepts only deletions until its databases are defragmented: demo-1 does not respond"},
	} {
		t.Run(name, func(t *testing.T) {
			cluster, in := healthy()
			cluster.Status.Defragmentation = c.status
			m := &in.State.Members[1]
			m.DBSize, m.InUse, m.Quota, m.NoSpace = c.size*mebibyte, c.inUse*mebibyte, 100*mebibyte, c.alarm
			cluster.Status = Compute(cluster, in)
			got := meta.FindStatusCondition(cluster.Status.Conditions, v1alpha1.EtcdSpaceAvailable)
			if got == nil || got.Reason != c.want || got.Message != c.message {
				t.Fatalf("%+v, want %s: %s", got, c.want, c.message)
			}
			in.State = in.State.WithMembers(nil, etcd.ErrUnreachable)
			if next := meta.FindStatusCondition(
				Compute(cluster, in).Conditions, v1alpha1.EtcdSpaceAvailable,
			); next.Reason != c.want {
				t.Errorf("without a quorum: %+v, want the last known one", next)
			}
		})
	}
}

func TestBackupReady(t *testing.T) {
	current := Schedule{
		"nightly", metav1.Condition{Status: metav1.ConditionTrue, Reason: "BackupCurrent", Message: "The newest is good"},
	}
	overdue := Schedule{
		"hourly", metav1.Condition{Status: metav1.ConditionFalse, Reason: "BackupOverdue", Message: "There is none"},
	}
	for name, c := range map[string]struct {
		schedules []Schedule
		want      string
	}{
		"none":    {nil, ""},
		"current": {[]Schedule{current}, "True BackupCurrent The newest is good"},
		"two":     {[]Schedule{current, current}, "True BackupsCurrent The newest backups of all 2 schedules are current"},
		"overdue": {[]Schedule{current, overdue}, "False BackupOverdue hourly: There is none"},
	} {
		cluster, in := healthy()
		in.Schedules = c.schedules
		got := ""
		if ready := meta.FindStatusCondition(Compute(cluster, in).Conditions, v1alpha1.BackupReady); ready != nil {
			got = string(ready.Status) + " " + ready.Reason + " " + ready.Message
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
