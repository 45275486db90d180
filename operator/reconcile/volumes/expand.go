package volumes

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/observed"
	"quorate.dev/operator/reconcile/owned"
)

// Expand increases the requested size of claims that are smaller than spec.storage.size. The hosting cluster rejects
// that if the storage class does not allow expansion. The quota of etcd follows the smallest volume, whose size Expand
// returns, together with the errors of rejected expansions. A rejection is reported and not an error, because the other
// claims can still be expanded and the cluster works with its former quota. Volumes are never reduced.
func Expand(ctx context.Context, objects owned.Objects, state *observed.State) (smallest int64, rejected, err error) {
	size := state.Cluster.StorageSize()
	smallest = size.Value()
	var rejections []error
	for i := range state.Claims {
		claim := &state.Claims[i]
		current := claim.Spec.Resources.Requests[corev1.ResourceStorage]
		if claim.DeletionTimestamp != nil || size.Cmp(current) <= 0 {
			continue
		}
		after := claim.DeepCopy()
		after.Spec.Resources.Requests[corev1.ResourceStorage] = size
		err := objects.Client.Patch(ctx, after, client.MergeFrom(claim))
		if err != nil {
			smallest = min(smallest, current.Value())
			err = fmt.Errorf("expand claim %s to %s: %w", claim.Name, size.String(), err)
		}
		switch {
		case apierrors.IsForbidden(err), apierrors.IsInvalid(err):
			rejections = append(rejections, err)
			continue
		case err != nil:
			return smallest, nil, err
		}
		objects.Event(state.Cluster, owned.Event{
			Related: owned.Reference("PersistentVolumeClaim", claim), Reason: v1alpha1.ReasonVolumeResizing, Action: "Resize",
			Message: fmt.Sprintf("Resizing volume of %s from %s to %s", claim.Name, current.String(), size.String()),
		})
	}
	return smallest, errors.Join(rejections...), nil
}
