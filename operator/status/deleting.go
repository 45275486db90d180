package status

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/operator/api/v1alpha1"
)

// deleting is false while a requested deletion waits. The status is not computed any more once objects are being
// deleted.
func deleting(_ *v1alpha1.ApiServerCluster, in Input) metav1.Condition {
	if in.Deletion == nil {
		return condition(v1alpha1.Deleting, true, v1alpha1.ReasonDeletingObjects,
			"The objects of the cluster are being deleted")
	}
	return condition(v1alpha1.Deleting, false, in.Deletion.Reason, "%s", in.Deletion.Message)
}
