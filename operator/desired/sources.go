package desired

import (
	corev1 "k8s.io/api/core/v1"

	"quorate.dev/operator/api/v1alpha1"
)

// Sources returns the names of the ConfigMaps or Secrets (kind) that the spec refers to and the operator reads. Objects
// that only kubelets read, such as image pull secrets, are not included.
func Sources(cluster *v1alpha1.ApiServerCluster, kind string) (names []string) {
	references := secretRefs(cluster)
	if kind == "ConfigMap" {
		references = configMapRefs(cluster)
	}
	for _, reference := range references {
		if reference != nil {
			names = append(names, reference.Name)
		}
	}
	return names
}

// configMapRefs returns the references to ConfigMaps in the spec. Elements are nil if they are not set.
func configMapRefs(cluster *v1alpha1.ApiServerCluster) (references []*corev1.LocalObjectReference) {
	for _, part := range Parts(cluster) {
		references = append(references, part.Files.ConfigMapRef)
	}
	for _, service := range cluster.Spec.Aggregation.APIServices {
		if service.CABundle != nil {
			references = append(references, service.CABundle.ConfigMapRef)
		}
	}
	return references
}

// secretRefs returns the references to Secrets in the spec. Elements are nil if they are not set.
func secretRefs(cluster *v1alpha1.ApiServerCluster) (references []*corev1.LocalObjectReference) {
	for _, part := range Parts(cluster) {
		references = append(references, part.Files.SecretRef)
	}
	for _, service := range cluster.Spec.Aggregation.APIServices {
		if service.CABundle != nil {
			references = append(references, service.CABundle.SecretRef)
		}
	}
	certificates := &cluster.Spec.Certificates
	references = append(references, certificates.Serving.SecretRef,
		certificates.Authorities.ServingSecretRef, certificates.Authorities.ClientSecretRef)
	if external := cluster.Spec.Etcd.External; external != nil {
		references = append(references, external.SecretRef)
	}
	if restore := cluster.Spec.Restore; restore != nil {
		references = append(references, restore.ServiceAccountKeySecretRef, restore.EncryptionKeysSecretRef)
		references = append(references, restoreRefs(&restore.From, restore.Encryption)...)
	}
	if recovery := cluster.Spec.Recovery; recovery != nil {
		references = append(references, restoreRefs(recovery.From, recovery.Encryption)...)
	}
	if final := cluster.Spec.Deletion.FinalBackup; final != nil {
		references = append(references, backupRefs(&final.Destination, final.Encryption)...)
	}
	upgrade := &cluster.Spec.Maintenance.UpgradeBackup
	return append(references, backupRefs(upgrade.Destination, upgrade.Encryption)...)
}

func restoreRefs(from *v1alpha1.RestoreSource, encryption *v1alpha1.BackupEncryption) []*corev1.LocalObjectReference {
	if from == nil || from.Location == nil {
		return backupRefs(nil, encryption)
	}
	return backupRefs(&from.Location.Destination, encryption)
}

func backupRefs(
	destination *v1alpha1.BackupDestination, encryption *v1alpha1.BackupEncryption,
) (references []*corev1.LocalObjectReference) {
	if destination != nil && destination.S3 != nil {
		references = append(references, &destination.S3.CredentialsSecretRef, destination.S3.CASecretRef)
	}
	if encryption != nil {
		references = append(references, &encryption.SecretRef)
	}
	return references
}
