package status

import (
	"cmp"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/operator/api/v1alpha1"
)

// restored is true once the backup of spec.restore is restored.
func restored(cluster *v1alpha1.ApiServerCluster, _ Input) metav1.Condition {
	restore := cluster.Status.Restore
	switch {
	case !cluster.Restoring() && restore != nil:
		return condition(v1alpha1.Restored, true, v1alpha1.ReasonBackupRestored,
			"Restored %s%s, revision %d", restore.Location, unverified(restore.Verification), restore.Revision)
	case !cluster.Restoring():
		return condition(v1alpha1.Restored, true, v1alpha1.ReasonBackupRestored, "The cluster was bootstrapped")
	case restore == nil:
		return condition(v1alpha1.Restored, false, v1alpha1.ReasonRestoring, "Waiting for the volume of the first member")
	}
	return condition(v1alpha1.Restored, false, cmp.Or(restore.Reason, v1alpha1.ReasonRestoring), "%s", restore.Message)
}

// unverified returns the suffix " (not verified)" for the location of a backup that was restored without verification,
// or "".
func unverified(verification string) string {
	if verification == v1alpha1.Unverified {
		return " (not verified)"
	}
	return ""
}
