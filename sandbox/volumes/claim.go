package volumes

import (
	"path/filepath"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// Finalizers and annotations that Kubernetes' volume controllers set, and the value of provisionedBy in a sandbox.
const (
	PVCProtectionFinalizer = "kubernetes.io/pvc-protection" // on claims, until no Pod uses them
	PVProtectionFinalizer  = "kubernetes.io/pv-protection"  // on volumes, until their claim is deleted
	bindCompleted          = "pv.kubernetes.io/bind-completed"
	boundController        = "pv.kubernetes.io/bound-by-controller"
	provisionedBy          = "pv.kubernetes.io/provisioned-by"
	Provisioner            = "sandbox.quorate.dev/folder"
)

// VolumeName returns the name of the volume provisioned for a claim.
func VolumeName(claim *corev1.PersistentVolumeClaim) string { return "pvc-" + string(claim.UID) }

// Provision returns the volume for a claim: a folder below root. The capacity of the volume is the requested one, and
// is not enforced.
func Provision(claim *corev1.PersistentVolumeClaim, root string) *corev1.PersistentVolume {
	name := VolumeName(claim)
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{provisionedBy: Provisioner}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: corev1.ResourceList{
				corev1.ResourceStorage: claim.Spec.Resources.Requests[corev1.ResourceStorage],
			},
			AccessModes:                   claim.Spec.AccessModes,
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
			StorageClassName:              ptr.Deref(claim.Spec.StorageClassName, ""),
			VolumeMode:                    claim.Spec.VolumeMode,
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				HostPath: &corev1.HostPathVolumeSource{Path: filepath.Join(root, name), Type: ptr.To(corev1.HostPathDirectory)},
			},
			ClaimRef: &corev1.ObjectReference{
				APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID,
			},
		},
	}
}

// NeedsVolume reports whether a claim waits for dynamic provisioning, which the storage class "" disables.
func NeedsVolume(claim *corev1.PersistentVolumeClaim) bool {
	static := claim.Spec.StorageClassName != nil && *claim.Spec.StorageClassName == ""
	return claim.Spec.VolumeName == "" && claim.DeletionTimestamp == nil && !static
}

// Bind returns the claim, bound to its provisioned volume.
func Bind(claim *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
	bound := claim.DeepCopy()
	bound.Spec.VolumeName = VolumeName(claim)
	metav1.SetMetaDataAnnotation(&bound.ObjectMeta, bindCompleted, "yes")
	metav1.SetMetaDataAnnotation(&bound.ObjectMeta, boundController, "yes")
	if !slices.Contains(bound.Finalizers, PVCProtectionFinalizer) {
		bound.Finalizers = append(bound.Finalizers, PVCProtectionFinalizer)
	}
	return bound
}

// Bound returns the status of a claim that is bound to a volume.
func Bound(volume *corev1.PersistentVolume) corev1.PersistentVolumeClaimStatus {
	return corev1.PersistentVolumeClaimStatus{
		Phase: corev1.ClaimBound, AccessModes: volume.Spec.AccessModes, Capacity: volume.Spec.Capacity,
	}
}

// Expanded returns the volume with the capacity that the claim requests, or nil if the volume is large enough.
func Expanded(volume *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) *corev1.PersistentVolume {
	asked, has := claim.Spec.Resources.Requests[corev1.ResourceStorage], volume.Spec.Capacity[corev1.ResourceStorage]
	if asked.Cmp(has) <= 0 {
		return nil
	}
	grown := volume.DeepCopy()
	grown.Spec.Capacity = corev1.ResourceList{corev1.ResourceStorage: asked}
	return grown
}

// IsProvisioned reports whether Provision returned the volume.
func IsProvisioned(volume *corev1.PersistentVolume) bool {
	return volume.Annotations[provisionedBy] == Provisioner && volume.Spec.HostPath != nil && volume.Spec.ClaimRef != nil
}
