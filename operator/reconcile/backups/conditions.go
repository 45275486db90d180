package backups

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/status"
)

// Conditions returns the conditions of the backup schedules of a cluster, for the condition of the cluster. They come
// from the cache that reader has.
func Conditions(
	ctx context.Context, reader client.Reader, cluster *v1alpha1.ApiServerCluster,
) (all []status.Schedule, err error) {
	var list v1alpha1.ApiServerBackupScheduleList
	if err := reader.List(ctx, &list, client.InNamespace(cluster.Namespace)); err != nil {
		return nil, fmt.Errorf("list backup schedules: %w", err)
	}
	for _, s := range list.Items {
		if s.Spec.Template.ClusterName != cluster.Name || s.DeletionTimestamp != nil {
			continue
		}
		c := meta.FindStatusCondition(s.Status.Conditions, v1alpha1.BackupReady)
		if c == nil {
			c = &metav1.Condition{
				Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonNotObserved, Message: "The schedule was not evaluated yet",
			}
		}
		all = append(all, status.Schedule{Name: s.Name, Condition: *c})
	}
	return all, nil
}
