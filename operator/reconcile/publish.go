package reconcile

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/status"
)

// maxEventMessage is the maximum length of the note of an events.k8s.io/v1 Event, in bytes.
const maxEventMessage = 1000

// publish updates the status if it has changed, and records an event for each condition whose status has changed.
func (r *Reconciler) publish(ctx context.Context, p *pass, before *v1alpha1.ApiServerCluster) error {
	base := p.cluster.DeepCopy()
	if base.ResourceVersion == before.ResourceVersion {
		base.Status = *before.Status.DeepCopy() // includes changes that the steps have made to the status without writing it
	}
	p.cluster.Status = status.Compute(p.cluster, p.input)
	if equality.Semantic.DeepEqual(base.Status, p.cluster.Status) {
		return nil
	}
	patch := client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})
	if err := r.Client.Status().Patch(ctx, p.cluster, patch); err != nil {
		return fmt.Errorf("writing the status: %w", err)
	}
	for _, condition := range p.cluster.Status.Conditions {
		old := meta.FindStatusCondition(before.Status.Conditions, condition.Type)
		if old == nil || old.Status != condition.Status {
			r.reportCondition(ctx, p.cluster, condition, old == nil)
		}
	}
	return nil
}

// reportCondition records an event for a condition whose status has changed. The first conditions of a new cluster are
// not warnings.
func (r *Reconciler) reportCondition(
	ctx context.Context, cluster *v1alpha1.ApiServerCluster, condition metav1.Condition, first bool,
) {
	healthy := metav1.ConditionTrue
	expected := slices.Contains([]string{v1alpha1.Progressing, v1alpha1.CredentialsRotating, v1alpha1.Paused}, condition.Type)
	if expected || condition.Type == v1alpha1.Degraded {
		healthy = metav1.ConditionFalse
	}
	expected = expected || first && condition.Type != v1alpha1.Degraded
	ctrl.LoggerFrom(ctx).Info("condition changed", "type", condition.Type, "status", condition.Status,
		"reason", condition.Reason, "message", condition.Message)
	r.event(cluster, event{
		warning: condition.Status != healthy && !expected, reason: condition.Reason, action: condition.Type,
		message: fmt.Sprintf("%s is %s: %s", condition.Type, condition.Status, condition.Message),
	})
}

// event is an Event about a cluster.
type event struct {
	warning bool
	related *corev1.ObjectReference // nil: none
	reason  string
	action  string
	message string
}

func (r *Reconciler) event(cluster *v1alpha1.ApiServerCluster, e event) {
	kind := corev1.EventTypeNormal
	if e.warning {
		kind = corev1.EventTypeWarning
	}
	if len(e.message) > maxEventMessage {
		e.message = e.message[:maxEventMessage]
	}
	if e.related == nil { // a nil *ObjectReference is not a nil runtime.Object
		r.Recorder.Eventf(cluster, nil, kind, e.reason, e.action, "%s", e.message)
		return
	}
	r.Recorder.Eventf(cluster, e.related, kind, e.reason, e.action, "%s", e.message)
}
