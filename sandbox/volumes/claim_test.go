package volumes

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func TestClaims(t *testing.T) {
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "team", Name: "data", UID: "u1", Finalizers: []string{PVCProtectionFinalizer},
		},
	}
	if !NeedsVolume(claim) {
		t.Error("a new claim does not need a volume")
	}
	volume := Provision(claim, "/root")
	if volume.Spec.HostPath.Path != "/root/pvc-u1" || !IsProvisioned(volume) || volume.Spec.ClaimRef.UID != "u1" {
		t.Errorf("got %+v", volume)
	}
	bound := Bind(claim)
	if bound.Spec.VolumeName != volume.Name || len(bound.Finalizers) != 1 || NeedsVolume(bound) ||
		claim.Spec.VolumeName != "" {
		t.Errorf("got %+v", bound)
	}
	static := &corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: ptr.To("")}}
	if NeedsVolume(static) || IsProvisioned(&corev1.PersistentVolume{}) {
		t.Error("a statically provisioned claim or volume is treated as provisioned by the sandbox")
	}
}

// TestProvisionedVolume checks the fields of a provisioned volume and of its claim that users and clients see.
func TestProvisionedVolume(t *testing.T) {
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "data", UID: "u1"},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			StorageClassName: ptr.To("fast"), VolumeMode: ptr.To(corev1.PersistentVolumeFilesystem),
			Resources: corev1.VolumeResourceRequirements{Requests: request("1Gi")},
		},
	}
	volume := Provision(claim, "/root")
	want := corev1.PersistentVolumeSpec{
		Capacity: request("1Gi"), AccessModes: claim.Spec.AccessModes, StorageClassName: "fast",
		VolumeMode: claim.Spec.VolumeMode, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimDelete,
		PersistentVolumeSource: corev1.PersistentVolumeSource{
			HostPath: &corev1.HostPathVolumeSource{Path: "/root/pvc-u1", Type: ptr.To(corev1.HostPathDirectory)},
		},
		ClaimRef: &corev1.ObjectReference{
			APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: "team", Name: "data", UID: "u1",
		},
	}
	if diff := cmp.Diff(want, volume.Spec); diff != "" {
		t.Error(diff)
	}
	bound := Bind(claim)
	annotations := map[string]string{
		"pv.kubernetes.io/bind-completed": "yes", "pv.kubernetes.io/bound-by-controller": "yes",
	}
	if diff := cmp.Diff(annotations, bound.Annotations); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"kubernetes.io/pvc-protection"}, bound.Finalizers); diff != "" {
		t.Error(diff)
	}
	status := corev1.PersistentVolumeClaimStatus{
		Phase: corev1.ClaimBound, AccessModes: claim.Spec.AccessModes, Capacity: request("1Gi"),
	}
	if diff := cmp.Diff(status, Bound(volume)); diff != "" {
		t.Error(diff)
	}
}

func request(size string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}
}

func TestExpanded(t *testing.T) {
	for _, test := range []struct{ capacity, requested, want string }{
		{"1Gi", "2Gi", "2Gi"},
		{"1Gi", "1Gi", ""},
		{"1Gi", "1024Mi", ""},
		{"2Gi", "1Gi", ""},
	} {
		volume := &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{Capacity: request(test.capacity)}}
		claim := &corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{
			Resources: corev1.VolumeResourceRequirements{Requests: request(test.requested)},
		}}
		got := ""
		if grown := Expanded(volume, claim); grown != nil {
			got = grown.Spec.Capacity.Storage().String()
		}
		if got != test.want {
			t.Errorf("a volume of %s, of which %s are requested: got %q, want %q", test.capacity, test.requested, got, test.want)
		}
		if left := volume.Spec.Capacity.Storage().String(); left != test.capacity {
			t.Errorf("the volume of the informer was changed from %s to %s", test.capacity, left)
		}
	}
}
