package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"quorate.dev/sandbox/volumes"
)

// provision provisions and binds volumes for claims, and deletes the volumes of deleted claims.
func (a *Agent) provision(ctx context.Context) error {
	claims, err := a.lister.claims.List(labels.Everything())
	if err != nil {
		return err
	}
	var failures []error
	for _, claim := range claims {
		if err := a.provisionClaim(ctx, claim); err != nil {
			failures = append(failures, fmt.Errorf("claim %s/%s: %w", claim.Namespace, claim.Name, err))
		}
	}
	failures = append(failures, a.reclaim(ctx))
	return errors.Join(failures...)
}

func (a *Agent) provisionClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	switch {
	case claim.DeletionTimestamp != nil:
		return a.releaseClaim(ctx, claim)
	case volumes.NeedsVolume(claim):
		return a.bindClaim(ctx, claim)
	case claim.Spec.VolumeName == volumes.VolumeName(claim):
		return a.followVolume(ctx, claim)
	}
	return nil
}

func (a *Agent) bindClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	volume := volumes.Provision(claim, a.path("volumes"))
	if err := os.MkdirAll(volume.Spec.HostPath.Path, 0o700); err != nil {
		return err
	}
	core := a.options.Client.CoreV1()
	created, err := core.PersistentVolumes().Create(ctx, volume, metav1.CreateOptions{})
	if err == nil {
		created.Status.Phase = corev1.VolumeBound
		_, err = core.PersistentVolumes().UpdateStatus(ctx, created, metav1.UpdateOptions{})
	}
	if ignore(err, apierrors.IsAlreadyExists, apierrors.IsConflict) != nil {
		return err
	}
	bound, err := core.PersistentVolumeClaims(claim.Namespace).Update(ctx, volumes.Bind(claim), metav1.UpdateOptions{})
	if err != nil {
		return ignore(err, apierrors.IsConflict, apierrors.IsNotFound)
	}
	a.recorder.Eventf(claim, corev1.EventTypeNormal, "ProvisioningSucceeded",
		"Successfully provisioned volume %s", volume.Name)
	return a.setClaimStatus(ctx, bound, volumes.Bound(volume))
}

// followVolume updates the status of a bound claim: its phase is Bound, or Lost if its volume does not exist. It also
// expands the volume to the claim's request.
func (a *Agent) followVolume(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	volume, err := a.lister.volumes.Get(claim.Spec.VolumeName)
	if apierrors.IsNotFound(err) {
		// The informer of volumes may lag behind the informer of claims.
		volume, err = a.options.Client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	}
	if apierrors.IsNotFound(err) {
		lost := claim.Status
		lost.Phase = corev1.ClaimLost
		return a.setClaimStatus(ctx, claim, lost)
	}
	if err != nil {
		return err
	}
	if grown := volumes.Expanded(volume, claim); grown != nil {
		if volume, err = a.options.Client.CoreV1().PersistentVolumes().Update(
			ctx, grown, metav1.UpdateOptions{},
		); err != nil {
			return ignore(err, apierrors.IsConflict)
		}
	}
	return a.setClaimStatus(ctx, claim, volumes.Bound(volume))
}

func (a *Agent) setClaimStatus(
	ctx context.Context, claim *corev1.PersistentVolumeClaim, status corev1.PersistentVolumeClaimStatus,
) error {
	if equality.Semantic.DeepEqual(claim.Status, status) {
		return nil
	}
	updated := claim.DeepCopy()
	updated.Status = status
	_, err := a.options.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).UpdateStatus(ctx,
		updated, metav1.UpdateOptions{})
	return ignore(err, apierrors.IsConflict, apierrors.IsNotFound)
}

// releaseClaim removes the finalizer of a claim that is being deleted, unless a Pod uses the claim.
func (a *Agent) releaseClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	if !slices.Contains(claim.Finalizers, volumes.PVCProtectionFinalizer) {
		return nil
	}
	pods, err := a.lister.pods.Pods(claim.Namespace).List(labels.Everything())
	if err != nil || slices.ContainsFunc(pods, func(pod *corev1.Pod) bool { return uses(pod, claim.Name) }) {
		return err
	}
	released := claim.DeepCopy()
	released.Finalizers = without(released.Finalizers, volumes.PVCProtectionFinalizer)
	_, err = a.options.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Update(ctx,
		released, metav1.UpdateOptions{})
	return ignore(err, apierrors.IsConflict, apierrors.IsNotFound)
}

// uses reports whether a scheduled Pod that has not terminated mounts a claim.
func uses(pod *corev1.Pod, claim string) bool {
	if pod.Spec.NodeName == "" || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return false
	}
	return slices.ContainsFunc(pod.Spec.Volumes, func(volume corev1.Volume) bool {
		return volume.PersistentVolumeClaim != nil && volume.PersistentVolumeClaim.ClaimName == claim
	})
}

// reclaim deletes the provisioned volumes of claims that do not exist anymore, except for volumes with the reclaim
// policy Retain.
func (a *Agent) reclaim(ctx context.Context) error {
	list, err := a.lister.volumes.List(labels.Everything())
	if err != nil {
		return err
	}
	var failures []error
	for _, volume := range list {
		if volumes.IsProvisioned(volume) {
			failures = append(failures, a.reclaimVolume(ctx, volume))
		}
	}
	return errors.Join(failures...)
}

// reclaimVolume deletes the folder of a volume first, because the volume is the only reference to the folder.
func (a *Agent) reclaimVolume(ctx context.Context, volume *corev1.PersistentVolume) error {
	if used, err := a.claimExists(ctx, volume.Spec.ClaimRef); used || err != nil {
		return err
	}
	if volume.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRetain {
		return ignore(a.retainVolume(ctx, volume), apierrors.IsConflict, apierrors.IsNotFound)
	}
	if err := os.RemoveAll(volume.Spec.HostPath.Path); err != nil {
		return err
	}
	if err := a.releaseVolume(ctx, volume); err != nil {
		return ignore(err, apierrors.IsConflict, apierrors.IsNotFound)
	}
	err := a.options.Client.CoreV1().PersistentVolumes().Delete(ctx, volume.Name, metav1.DeleteOptions{})
	return ignore(err, apierrors.IsNotFound)
}

// retainVolume sets the phase of a volume without a claim to Released, or lets the API server delete the volume if a
// user has requested its deletion. The folder stays in both cases.
func (a *Agent) retainVolume(ctx context.Context, volume *corev1.PersistentVolume) error {
	if volume.DeletionTimestamp != nil {
		return a.releaseVolume(ctx, volume)
	}
	if volume.Status.Phase == corev1.VolumeReleased {
		return nil
	}
	released := volume.DeepCopy()
	released.Status.Phase = corev1.VolumeReleased
	_, err := a.options.Client.CoreV1().PersistentVolumes().UpdateStatus(ctx, released, metav1.UpdateOptions{})
	return err
}

// releaseVolume removes the finalizer of a volume.
func (a *Agent) releaseVolume(ctx context.Context, volume *corev1.PersistentVolume) error {
	if !slices.Contains(volume.Finalizers, volumes.PVProtectionFinalizer) {
		return nil
	}
	released := volume.DeepCopy()
	released.Finalizers = without(released.Finalizers, volumes.PVProtectionFinalizer)
	_, err := a.options.Client.CoreV1().PersistentVolumes().Update(ctx, released, metav1.UpdateOptions{})
	return err
}

// claimExists reports whether a referenced claim exists. Because the answer no leads to the deletion of data, and
// informers may lag, the API server must confirm it.
func (a *Agent) claimExists(ctx context.Context, reference *corev1.ObjectReference) (bool, error) {
	claim, err := a.lister.claims.PersistentVolumeClaims(reference.Namespace).Get(reference.Name)
	if err == nil && claim.UID == reference.UID {
		return true, nil
	}
	claim, err = a.options.Client.CoreV1().PersistentVolumeClaims(reference.Namespace).Get(ctx,
		reference.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil && claim.UID == reference.UID, err
}

func without(names []string, name string) []string {
	return slices.DeleteFunc(names, func(candidate string) bool { return candidate == name })
}
