package reconcile

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlreconcile "sigs.k8s.io/controller-runtime/pkg/reconcile"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/status"
)

// readSchedules reads the conditions of the cluster's backup schedules.
func (r *Reconciler) readSchedules(ctx context.Context, p *pass) error {
	var list v1alpha1.ApiServerBackupScheduleList
	if err := r.Client.List(ctx, &list, client.InNamespace(p.cluster.Namespace)); err != nil {
		return fmt.Errorf("listing backup schedules: %w", err)
	}
	for _, s := range list.Items {
		if s.Spec.Template.ClusterName != p.cluster.Name || s.DeletionTimestamp != nil {
			continue
		}
		c := meta.FindStatusCondition(s.Status.Conditions, v1alpha1.BackupReady)
		if c == nil {
			c = &metav1.Condition{Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonNotObserved, Message: "The schedule was not evaluated yet"}
		}
		p.input.Schedules = append(p.input.Schedules, status.Schedule{Name: s.Name, Condition: *c})
	}
	return nil
}

// clusterOfSchedule returns a request for the cluster of a backup schedule.
func clusterOfSchedule(_ context.Context, object client.Object) []ctrlreconcile.Request {
	s, ok := object.(*v1alpha1.ApiServerBackupSchedule)
	if !ok {
		return nil
	}
	key := client.ObjectKey{Namespace: s.Namespace, Name: s.Spec.Template.ClusterName}
	return []ctrlreconcile.Request{{NamespacedName: key}}
}
