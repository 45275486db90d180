package reconcile

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/status"
)

// noteLimit is the longest note of an event that a server accepts.
const noteLimit = 1000

// publish writes the status if it changed, and an event for each condition that did.
func (r *Reconciler) publish(ctx context.Context, p *pass, before *v1alpha1.ApiServerCluster) error {
	base := p.cluster.DeepCopy()
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
			r.announce(ctx, p.cluster, condition, old == nil)
		}
	}
	return nil
}

// announce tells of a condition's transition. That a new cluster is not there yet is no reason to warn.
func (r *Reconciler) announce(ctx context.Context, cluster *v1alpha1.ApiServerCluster, condition metav1.Condition, first bool) {
	good := metav1.ConditionTrue
	if condition.Type == v1alpha1.Degraded || condition.Type == v1alpha1.Progressing {
		good = metav1.ConditionFalse
	}
	kind := corev1.EventTypeNormal
	expected := condition.Type == v1alpha1.Progressing || first && condition.Type != v1alpha1.Degraded
	if condition.Status != good && !expected {
		kind = corev1.EventTypeWarning
	}
	ctrl.LoggerFrom(ctx).Info("condition", "type", condition.Type, "status", condition.Status, "reason", condition.Reason, "message", condition.Message)
	r.event(cluster, nil, kind, condition.Reason, condition.Type, "%s is %s: %s", condition.Type, condition.Status, condition.Message)
}

// event says what happened to a cluster, and to which of its objects.
func (r *Reconciler) event(cluster *v1alpha1.ApiServerCluster, related *corev1.ObjectReference, kind, reason, action, format string, args ...any) {
	note := fmt.Sprintf(format, args...)
	if len(note) > noteLimit {
		note = note[:noteLimit]
	}
	if related == nil {
		r.Recorder.Eventf(cluster, nil, kind, reason, action, "%s", note)
		return
	}
	r.Recorder.Eventf(cluster, related, kind, reason, action, "%s", note)
}
