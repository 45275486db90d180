package status

import (
	"cmp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/operator/api/v1alpha1"
)

// Schedule is the condition BackupReady of an ApiServerBackupSchedule of the cluster.
type Schedule struct {
	Name      string
	Condition metav1.Condition
}

// backupReady is true if the condition BackupReady is true for all schedules of the cluster. It is absent without
// schedules.
func backupReady(_ *v1alpha1.ApiServerCluster, in Input) metav1.Condition {
	var problems []string
	reason := ""
	schedules := slices.SortedFunc(slices.Values(in.Schedules), func(a, b Schedule) int {
		return cmp.Compare(a.Name, b.Name)
	})
	for _, s := range schedules {
		if s.Condition.Status != metav1.ConditionTrue {
			reason = cmp.Or(reason, s.Condition.Reason)
			problems = append(problems, s.Name+": "+s.Condition.Message)
		}
	}
	switch {
	case len(problems) > 0:
		return condition(v1alpha1.BackupReady, false, reason, "%s", strings.Join(problems, "; "))
	case len(schedules) == 1:
		return condition(v1alpha1.BackupReady, true, schedules[0].Condition.Reason, "%s", schedules[0].Condition.Message)
	}
	return condition(v1alpha1.BackupReady, true, v1alpha1.ReasonBackupsCurrent,
		"The newest backups of all %d schedules are current", len(schedules))
}
