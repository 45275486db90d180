package desired

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/operator/api/v1alpha1"
)

const (
	// ClusterUIDAnnotation has the UID of the cluster that owns an object without an owner reference. The garbage
	// collector of the hosting cluster does not delete such an object, regardless of how a client deletes the cluster.
	ClusterUIDAnnotation = "quorate.dev/cluster-uid"
	// RetainedLabel has the UID of the deleted cluster from which an object was retained.
	RetainedLabel = "quorate.dev/retained-from"
	// RecordSecret is the suffix of the Secret that describes a deleted cluster whose data was retained.
	RecordSecret = "retained"
)

// Owns reports whether a cluster owns an object: the cluster is the controller of the object, or the object has no
// controller and its annotation ClusterUIDAnnotation names the cluster.
func Owns(cluster *v1alpha1.ApiServerCluster, object metav1.Object) bool {
	if controller := metav1.GetControllerOfNoCopy(object); controller != nil {
		return controller.UID == cluster.UID
	}
	return cluster.UID != "" && object.GetAnnotations()[ClusterUIDAnnotation] == string(cluster.UID)
}

// KeySecrets returns the names of the Secrets without which the data of a cluster, its clients or its tokens would be
// useless.
func KeySecrets(cluster *v1alpha1.ApiServerCluster) (names []string) {
	for _, suffix := range append(Domains(cluster), ServiceAccountSecret, EncryptionSecret) {
		names = append(names, SecretName(cluster, suffix))
	}
	return names
}

// Durable reports whether an object contains data that a deletion policy can retain. Claims, the Secrets of keys, and
// the record of a deleted cluster do.
func Durable(cluster *v1alpha1.ApiServerCluster, object metav1.Object) bool {
	switch object.(type) {
	case *corev1.PersistentVolumeClaim:
		return true
	case *corev1.Secret:
		return object.GetName() == SecretName(cluster, RecordSecret) || slices.Contains(KeySecrets(cluster), object.GetName())
	}
	return false
}

// Detached reports whether the durable objects of a cluster have no owner reference. Only the operator may delete them
// then, after it has checked that the cluster is not protected, has a final backup, and does not retain its data.
func Detached(cluster *v1alpha1.ApiServerCluster) bool {
	d := cluster.Spec.Deletion
	return d.Protected || d.FinalBackup != nil || cluster.RetainsData()
}

// Detach makes a cluster the owner of an object by the annotation ClusterUIDAnnotation, and removes an owner reference
// to it.
func Detach(cluster *v1alpha1.ApiServerCluster, object metav1.Object) {
	annotate(object, ClusterUIDAnnotation, string(cluster.UID))
	object.SetOwnerReferences(slices.DeleteFunc(slices.Clone(object.GetOwnerReferences()), func(
		owner metav1.OwnerReference,
	) bool {
		return owner.UID == cluster.UID
	}))
}

// Kept reports whether an object is the claim of a member that has, or may have, the only copy of acknowledged writes.
func Kept(object metav1.Object) bool {
	annotations := object.GetAnnotations()
	return annotations[LostWritesAnnotation] != "" || annotations[UnprovenAnnotation] != ""
}

// Release removes an object from the cluster that it belonged to, without another owner.
func Release(cluster *v1alpha1.ApiServerCluster, object metav1.Object) {
	Detach(cluster, object)
	annotations := object.GetAnnotations()
	delete(annotations, ClusterUIDAnnotation)
	object.SetAnnotations(annotations)
	annotate(object, FormerMemberAnnotation, string(cluster.UID))
}

// Retain marks an object of a cluster as retained when the cluster is deleted.
func Retain(cluster *v1alpha1.ApiServerCluster, object metav1.Object) {
	Detach(cluster, object)
	MarkRetained(string(cluster.UID), object)
}

// MarkRetained marks an object as retained from the deleted cluster with the UID former.
func MarkRetained(former string, object metav1.Object) {
	annotate(object, ClusterUIDAnnotation, former)
	labels := object.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	labels[RetainedLabel] = former
	object.SetLabels(labels)
}

// Adopt makes a cluster the owner of an object that was retained from another cluster.
func Adopt(cluster *v1alpha1.ApiServerCluster, object metav1.Object) {
	labels := object.GetLabels()
	delete(labels, RetainedLabel)
	object.SetLabels(labels)
	Detach(cluster, object)
}

// RetainedFrom returns the UID of the deleted cluster from which an object was retained, or "".
func RetainedFrom(object metav1.Object) string { return object.GetLabels()[RetainedLabel] }

func annotate(object metav1.Object, name, value string) {
	annotations := object.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[name] = value
	object.SetAnnotations(annotations)
}
