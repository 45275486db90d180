package desired

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"quorate.dev/operator/api/v1alpha1"
)

const (
	certificateDirectory = "/etc/quorate/certificates"
	recordVolume         = "member-record"
)

// mounted returns the path of a file in the certificate volume of a pod.
func mounted(file string) string { return certificateDirectory + "/" + file }

// Claim returns the PersistentVolumeClaim of a member.
func Claim(cluster *v1alpha1.ApiServerCluster, name string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: cluster.Namespace, Labels: merged(Labels(cluster), memberSelector(cluster)),
		},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			StorageClassName: cluster.Spec.Storage.Class,
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: cluster.StorageSize()},
			},
		},
	}
}

func volumes(cluster *v1alpha1.ApiServerCluster, replica Replica) []corev1.Volume {
	volumes := []corev1.Volume{
		{Name: "certificates", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
			Sources: certificateSources(cluster, replica), DefaultMode: ptr.To[int32](0o440),
		}}},
		{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
	}
	if replica.Member {
		volumes = append(volumes, corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: replica.Name},
		}}, corev1.Volume{Name: recordVolume, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
	}
	return volumes
}

func mounts(replica Replica) []corev1.VolumeMount {
	mounts := []corev1.VolumeMount{
		{Name: "certificates", MountPath: certificateDirectory, ReadOnly: true},
		{Name: "tmp", MountPath: "/tmp"},
	}
	if replica.Member {
		mounts = append(mounts, corev1.VolumeMount{Name: "data", MountPath: dataDirectory},
			corev1.VolumeMount{Name: recordVolume, MountPath: recordDirectory})
	}
	return mounts
}

// certificateSources returns the files of the certificate volume. A replica gets only files that it needs: no key of an
// authority, and no key of a trust domain that it does not use.
func certificateSources(cluster *v1alpha1.ApiServerCluster, replica Replica) []corev1.VolumeProjection {
	sources := []corev1.VolumeProjection{leafSource(cluster, "serving")}
	if cluster.IsExtension() {
		sources = append(append(sources, authoritySource(cluster, ClientDomain)), hostSources(cluster)...)
	} else {
		sources = append(sources,
			leafSource(cluster, "front-proxy-client"),
			authoritySource(cluster, ClientDomain),
			authoritySource(cluster, FrontProxyDomain),
			authoritySource(cluster, ServingDomain),
			source(SecretName(cluster, ServiceAccountSecret),
				item(ServiceAccountPublicKey, ServiceAccountPublicKey), item(ServiceAccountPrivateKey, ServiceAccountPrivateKey)))
	}
	if cluster.RunsControllerManager() {
		sources = append(sources, leafSource(cluster, KubeletClientSecret))
	}
	external := cluster.Spec.Etcd.External
	switch {
	case external != nil && external.SecretRef != nil:
		return append(sources, source(external.SecretRef.Name,
			item(AuthorityKey, "etcd-client-ca.crt"), item(corev1.TLSCertKey, "etcd-client.crt"),
			item(corev1.TLSPrivateKeyKey, "etcd-client.key")))
	case external != nil:
		return sources
	case replica.Member:
		return append(sources, leafSource(cluster, "etcd-peer"), leafSource(cluster, "etcd-server"),
			authoritySource(cluster, PeerDomain), authoritySource(cluster, EtcdClientDomain))
	}
	return append(sources, leafSource(cluster, "etcd-client"), authoritySource(cluster, EtcdClientDomain))
}

func leafSource(cluster *v1alpha1.ApiServerCluster, name string) corev1.VolumeProjection {
	return source(SecretName(cluster, name), item(corev1.TLSCertKey, name+".crt"),
		item(corev1.TLSPrivateKeyKey, name+".key"))
}

func authoritySource(cluster *v1alpha1.ApiServerCluster, domain string) corev1.VolumeProjection {
	return source(SecretName(cluster, domain), item(corev1.TLSCertKey, domain+".crt"))
}

func source(secret string, items ...corev1.KeyToPath) corev1.VolumeProjection {
	return corev1.VolumeProjection{Secret: &corev1.SecretProjection{
		LocalObjectReference: corev1.LocalObjectReference{Name: secret}, Items: items,
	}}
}

func item(key, path string) corev1.KeyToPath { return corev1.KeyToPath{Key: key, Path: path} }

// Mounts reports whether a pod mounts files of a Secret.
func Mounts(pod *corev1.Pod, secret string) bool {
	for _, volume := range pod.Spec.Volumes {
		if volume.Secret != nil && volume.Secret.SecretName == secret {
			return true
		}
		if volume.Projected == nil {
			continue
		}
		for _, source := range volume.Projected.Sources {
			if source.Secret != nil && source.Secret.Name == secret {
				return true
			}
		}
	}
	return false
}
