package status

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/operator/api/v1alpha1"
)

// paused is true until the time in PausedUntilAnnotation.
func paused(cluster *v1alpha1.ApiServerCluster, in Input) metav1.Condition {
	until, _ := cluster.PausedUntil() // the error makes the spec invalid
	at := until.UTC().Format(time.RFC3339)
	if cluster.Paused(in.Now) {
		return condition(v1alpha1.Paused, true, v1alpha1.ReasonPausedByAnnotation, "Reconciliation is paused until %s", at)
	}
	return condition(v1alpha1.Paused, false, v1alpha1.ReasonPauseExpired, "The pause ended at %s", at)
}

// removeInapplicable removes the conditions that do not apply to a cluster.
func removeInapplicable(next *v1alpha1.ApiServerClusterStatus, cluster *v1alpha1.ApiServerCluster, in Input) {
	if len(apiServicesOf(cluster, in)) == 0 {
		meta.RemoveStatusCondition(&next.Conditions, v1alpha1.APIServicesAvailable)
	}
	if len(companionsOf(cluster, in)) == 0 {
		meta.RemoveStatusCondition(&next.Conditions, v1alpha1.CompanionsAvailable)
	}
	if len(in.Schedules) == 0 {
		meta.RemoveStatusCondition(&next.Conditions, v1alpha1.BackupReady)
	}
	if cluster.ExternalEtcd() {
		meta.RemoveStatusCondition(&next.Conditions, v1alpha1.EtcdQuorum)
	}
	if cluster.ExternalEtcd() || !cluster.Bootstrapped() || cluster.Hibernated() {
		meta.RemoveStatusCondition(&next.Conditions, v1alpha1.EtcdSpaceAvailable)
	}
	if until, err := cluster.PausedUntil(); err != nil || until.IsZero() {
		meta.RemoveStatusCondition(&next.Conditions, v1alpha1.Paused)
	}
	if cluster.Spec.Recovery == nil && cluster.Status.Recovery == nil {
		meta.RemoveStatusCondition(&next.Conditions, v1alpha1.Recovered)
	}
	if in.Deletion == nil {
		meta.RemoveStatusCondition(&next.Conditions, v1alpha1.Deleting)
	}
	if cluster.Spec.Restore == nil {
		meta.RemoveStatusCondition(&next.Conditions, v1alpha1.Restored)
	}
}
