package outcome

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/reconcile/owned"
	"quorate.dev/operator/status"
)

// Publish writes the status if it differs from the stored one, with an optimistic lock, and records an event for each
// condition whose status has changed.
//
// before is the cluster as it was read. If no step has written the status since, the patch is the difference to the
// status of before, and includes fields that steps have set only in memory. If a step has written it, such fields may
// be missing in the patch; the next reconciliation sets them again. After a conflict, no event is recorded, because the
// next reconciliation computes the conditions again.
func (o *Outcome) Publish(
	ctx context.Context, objects owned.Objects, before *v1alpha1.ApiServerCluster,
) error {
	base := o.Cluster.DeepCopy()
	if base.ResourceVersion == before.ResourceVersion {
		// The patch includes fields that steps have set in o.Cluster.Status without writing them.
		base.Status = *before.Status.DeepCopy()
	}
	o.Cluster.Status = status.Compute(o.Cluster, o.Input)
	if equality.Semantic.DeepEqual(base.Status, o.Cluster.Status) {
		return nil
	}
	patch := client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})
	if err := objects.Client.Status().Patch(ctx, o.Cluster, patch); err != nil {
		return fmt.Errorf("write the status: %w", err)
	}
	for _, condition := range o.Cluster.Status.Conditions {
		if condition.Type == v1alpha1.Deleting {
			continue // deletion.Steps.Hold has recorded the event
		}
		old := meta.FindStatusCondition(before.Status.Conditions, condition.Type)
		if old == nil || old.Status != condition.Status {
			reportCondition(ctx, objects, o.Cluster, condition, old == nil)
		}
	}
	return nil
}

// reportCondition records an event for a condition whose status has changed. first reports that the cluster did not
// have the condition before; the first conditions of a new cluster are not warnings, except for Degraded. Conditions
// that are true for a while in normal operation, such as Progressing, never are.
func reportCondition(
	ctx context.Context, objects owned.Objects, cluster *v1alpha1.ApiServerCluster, condition metav1.Condition, first bool,
) {
	healthy := metav1.ConditionTrue
	expected := slices.Contains([]string{v1alpha1.Progressing, v1alpha1.CredentialsRotating, v1alpha1.Paused},
		condition.Type)
	if expected || condition.Type == v1alpha1.Degraded {
		healthy = metav1.ConditionFalse
	}
	expected = expected || first && condition.Type != v1alpha1.Degraded
	ctrl.LoggerFrom(ctx).Info("Condition changed", "type", condition.Type, "status", condition.Status,
		"reason", condition.Reason, "message", condition.Message)
	objects.Event(cluster, owned.Event{
		Warning: condition.Status != healthy && !expected, Reason: condition.Reason, Action: condition.Type,
		Message: fmt.Sprintf("%s is %s: %s", condition.Type, condition.Status, condition.Message),
	})
}
