package desired

import (
	"encoding/base64"
	"path"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"quorate.dev/operator/api/v1alpha1"
)

const (
	backupDirectory     = "/backups" // mount of a volume destination
	encryptionDirectory = "/etc/quorate/encryption"
	s3Directory         = "/etc/quorate/s3"

	// ContainerName is the name of the container of the pods of backups.
	ContainerName = "backup"
)

// Keys of the Secrets of backups.
const (
	RecipientsKey = "recipients"
	IdentitiesKey = "identities"

	s3AccessKey    = "accessKeyID"
	s3SecretKey    = "secretAccessKey"
	s3SessionToken = "sessionToken"
)

// BackupPath returns the path of a backup in its volume or bucket.
func BackupPath(backup *v1alpha1.ApiServerBackup) string {
	prefix := ""
	switch d := backup.Spec.Destination; {
	case d.Volume != nil:
		prefix = d.Volume.Path
	case d.S3 != nil:
		prefix = d.S3.Prefix
	}
	return path.Join(prefix, backup.Namespace, backup.Spec.ClusterName, backup.Name)
}

// Keys describe the service-account key of a backup's cluster.
type Keys struct {
	Fingerprint string // of the public key
	Sealed      []byte // encrypted keys; nil if the backup is not encrypted
}

// BackupPod returns the pod of an attempt to create a backup. It runs the image of the cluster, connects to the given
// client URLs, and has no access to any API or to the service-account key.
func BackupPod(
	backup *v1alpha1.ApiServerBackup, cluster *v1alpha1.ApiServerCluster, image string, endpoints []string, keys Keys,
) *corev1.Pod {
	args := []string{
		"backup", "create", "--uid=" + string(backup.UID), "--namespace=" + backup.Namespace, "--cluster=" + cluster.Name,
		"--service-account-key-fingerprint=" + keys.Fingerprint,
		"--cacert=" + mounted("etcd-client-ca.crt"), "--cert=" + mounted("etcd-client.crt"), "--key=" + mounted("etcd-client.key"),
	}
	for _, endpoint := range endpoints {
		args = append(args, "--endpoints="+endpoint)
	}
	job := newJob(BackupPodName(backup), backup.Namespace, cluster, image, args)
	job.pod.Labels[EtcdClientLabel] = cluster.Name
	job.timeout(backup.Spec.TimeoutSeconds)
	job.destination(backup.Spec.Destination, backup.Status.Path)
	job.volume("certificates", certificateDirectory, corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
		Sources:     []corev1.VolumeProjection{leafSource(cluster, "etcd-client"), authoritySource(cluster, EtcdClientDomain)},
		DefaultMode: ptr.To[int32](0o440),
	}})
	job.encryption(backup.Spec.Encryption, RecipientsKey, "--recipients-file=")
	if keys.Sealed != nil {
		job.container().Env = append(job.container().Env,
			corev1.EnvVar{Name: "QUORATE_SEALED_KEYS", Value: base64.StdEncoding.EncodeToString(keys.Sealed)})
	}
	return job.pod
}

// SecretKeys are keys that a Secret must have.
type SecretKeys struct {
	Name string
	Keys []string
}

// BackupSecrets returns the Secrets of the user that the pod of a backup needs.
func BackupSecrets(backup *v1alpha1.ApiServerBackup) (all []SecretKeys) {
	return storageSecrets(backup.Spec.Destination, backup.Spec.Encryption, RecipientsKey)
}

// RestoreSecrets returns the Secrets of the user that the pod of a restore needs.
func RestoreSecrets(destination v1alpha1.BackupDestination, encryption *v1alpha1.BackupEncryption) []SecretKeys {
	return storageSecrets(destination, encryption, IdentitiesKey)
}

func storageSecrets(destination v1alpha1.BackupDestination, encryption *v1alpha1.BackupEncryption, key string) (all []SecretKeys) {
	if s3 := destination.S3; s3 != nil {
		all = append(all, SecretKeys{s3.CredentialsSecretRef.Name, []string{s3AccessKey, s3SecretKey}})
		if s3.CASecretRef != nil {
			all = append(all, SecretKeys{s3.CASecretRef.Name, []string{AuthorityKey}})
		}
	}
	if encryption != nil {
		all = append(all, SecretKeys{encryption.SecretRef.Name, []string{key}})
	}
	return all
}

// BackupClusterSecrets returns the Secrets of the cluster that an attempt to create a backup needs.
func BackupClusterSecrets(cluster *v1alpha1.ApiServerCluster) []SecretKeys {
	return []SecretKeys{
		{SecretName(cluster, ServiceAccountSecret), []string{ServiceAccountPublicKey, ServiceAccountPrivateKey}},
		{SecretName(cluster, "etcd-client"), []string{corev1.TLSCertKey, corev1.TLSPrivateKeyKey}},
		{SecretName(cluster, EtcdClientDomain), []string{corev1.TLSCertKey}},
	}
}

// BackupPodName returns the name of the pod of the current attempt. It never is that of a replica, which ends in a hyphen
// and a number: a backup may have the name of a cluster.
func BackupPodName(backup *v1alpha1.ApiServerBackup) string {
	return backup.Name + "-try" + strconv.Itoa(int(backup.Status.Attempts))
}

// DeletePod returns the pod that deletes the data of a backup. If the cluster no longer exists, only its name is set.
func DeletePod(backup *v1alpha1.ApiServerBackup, cluster *v1alpha1.ApiServerCluster, image string) *corev1.Pod {
	job := newJob(DeletePodName(backup), backup.Namespace, cluster, image, []string{
		"backup", "delete", "--uid=" + string(backup.UID),
	})
	job.destination(backup.Spec.Destination, backup.Status.Path)
	return job.pod
}

// DeletePodName returns the name of the pod that deletes the data of a backup.
func DeletePodName(backup *v1alpha1.ApiServerBackup) string { return backup.Name + "-delete" }

// RestorePod returns the pod that restores a backup into the volume of the first member.
func RestorePod(cluster *v1alpha1.ApiServerCluster, image, member string, location v1alpha1.BackupLocation) *corev1.Pod {
	return restorePod(restore{
		pod: RestorePodName(cluster), cluster: cluster, image: image, uid: RestoreUID(cluster), member: member,
		location: location, encryption: cluster.Spec.Restore.Encryption,
	})
}

// RecoveryFromBackupPod returns the pod that restores a backup into the volume of the member of status.recovery.
func RecoveryFromBackupPod(cluster *v1alpha1.ApiServerCluster, image string, location v1alpha1.BackupLocation) *corev1.Pod {
	r := cluster.Status.Recovery
	return restorePod(restore{
		pod: RecoveryPodName(cluster), cluster: cluster, image: image, uid: RecoveryUID(cluster), member: r.Member,
		location: location, encryption: r.Request.Encryption,
	})
}

// RecoveryPod returns the pod that makes the member of status.recovery the only one of a new etcd cluster.
func RecoveryPod(cluster *v1alpha1.ApiServerCluster, image string) *corev1.Pod {
	member := cluster.Status.Recovery.Member
	job := newJob(RecoveryPodName(cluster), cluster.Namespace, cluster, image,
		append([]string{"etcd", "recover", "--uid=" + RecoveryUID(cluster)}, newMember(cluster, member)...))
	job.data(member)
	return job.pod
}

// RecoveryPodName returns the name of the pod that prepares the data of a recovery.
func RecoveryPodName(cluster *v1alpha1.ApiServerCluster) string { return cluster.Name + "-recovery" }

// RestoreUID identifies the restore of the backup of spec.restore in the volume of the first member.
func RestoreUID(cluster *v1alpha1.ApiServerCluster) string {
	return string(cluster.UID) + "/" + hash(cluster.Spec.Restore.From)
}

// RecoveryUID identifies the recovery of status.recovery in the volume of its member.
func RecoveryUID(cluster *v1alpha1.ApiServerCluster) string {
	return string(cluster.UID) + "/" + cluster.Status.Recovery.Request.RequestID
}

// restore describes a pod that restores a backup into the volume of a member.
type restore struct {
	pod, image, uid, member string
	cluster                 *v1alpha1.ApiServerCluster
	location                v1alpha1.BackupLocation
	encryption              *v1alpha1.BackupEncryption
}

func restorePod(r restore) *corev1.Pod {
	args := append([]string{"backup", "restore", "--uid=" + r.uid}, newMember(r.cluster, r.member)...)
	// Use the member's volume for temporary files: it has room for the database, and the node may not.
	job := newJob(r.pod, r.cluster.Namespace, r.cluster, r.image, append(args, "--scratch="+dataDirectory))
	job.data(r.member)
	job.destination(r.location.Destination, r.location.Path)
	job.encryption(r.encryption, IdentitiesKey, "--identities-file=")
	return job.pod
}

// newMember returns the flags of the data directory of the only member of a new etcd cluster.
func newMember(cluster *v1alpha1.ApiServerCluster, member string) []string {
	return []string{
		"--data-dir=" + dataDirectory + "/etcd", "--name=" + member,
		"--initial-advertise-peer-url=" + PeerURL(cluster, member), "--initial-cluster-token=" + token(cluster),
	}
}

// RestorePodName returns the name of the pod that restores the backup of a new cluster.
func RestorePodName(cluster *v1alpha1.ApiServerCluster) string { return cluster.Name + "-restore" }

// JobUID returns the UID of the operation of a pod that prepares data: which backup it restores, or the request of a
// recovery.
func JobUID(pod *corev1.Pod) string {
	for _, c := range pod.Spec.Containers {
		for _, argument := range c.Args {
			if uid, ok := strings.CutPrefix(argument, "--uid="); ok && c.Name == ContainerName {
				return uid
			}
		}
	}
	return ""
}

// job builds a pod that runs once. Its result is its termination message.
type job struct{ pod *corev1.Pod }

func newJob(name, namespace string, cluster *v1alpha1.ApiServerCluster, image string, args []string) job {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, Labels: map[string]string{
			NameLabel: "quorate", "app.kubernetes.io/instance": cluster.Name, ManagedByLabel: ManagedBy, RoleLabel: RoleBackup,
		}},
		Spec: podSpec(cluster, Replica{}, handOver),
	}
	pod.Spec.RestartPolicy, pod.Spec.Affinity, pod.Spec.TopologySpreadConstraints = corev1.RestartPolicyNever, nil, nil
	pod.Spec.Volumes = nil
	pod.Spec.Containers = []corev1.Container{{
		Name: ContainerName, Image: image, ImagePullPolicy: pullPolicy(cluster),
		Args: append(args, "--result-file="+corev1.TerminationMessagePathDefault),
		Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("128Mi"),
		}},
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: ptr.To(false), ReadOnlyRootFilesystem: ptr.To(true),
			Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
		TerminationMessagePath:   corev1.TerminationMessagePathDefault,
		TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
	}}
	j := job{pod}
	j.volume("tmp", "/tmp", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})
	return j
}

func (j job) container() *corev1.Container { return &j.pod.Spec.Containers[0] }

func (j job) volume(name, mountPath string, source corev1.VolumeSource) {
	j.pod.Spec.Volumes = append(j.pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: source})
	j.container().VolumeMounts = append(j.container().VolumeMounts, corev1.VolumeMount{
		Name: name, MountPath: mountPath, ReadOnly: source.Projected != nil || source.Secret != nil,
	})
}

// data mounts the volume of a member.
func (j job) data(member string) {
	j.volume("data", dataDirectory, corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: member},
	})
}

func (j job) timeout(seconds *int32) {
	j.container().Args = append(j.container().Args, "--timeout="+strconv.Itoa(int(ptr.Deref(seconds, 3600)))+"s")
}

// destination mounts the volume, or sets the flags and credentials of the bucket.
func (j job) destination(d v1alpha1.BackupDestination, location string) {
	c := j.container()
	c.Args = append(c.Args, "--path="+location)
	if d.Volume != nil {
		c.Args = append(c.Args, "--directory="+backupDirectory)
		j.volume("backups", backupDirectory, corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: d.Volume.ClaimName},
		})
		return
	}
	c.Args = append(c.Args, "--s3-endpoint="+d.S3.Endpoint, "--s3-bucket="+d.S3.Bucket)
	if d.S3.Region != "" {
		c.Args = append(c.Args, "--s3-region="+d.S3.Region)
	}
	if d.S3.PathStyle {
		c.Args = append(c.Args, "--s3-path-style")
	}
	secret := d.S3.CredentialsSecretRef
	c.Env = append(c.Env, secretVariable("AWS_ACCESS_KEY_ID", secret, s3AccessKey, false),
		secretVariable("AWS_SECRET_ACCESS_KEY", secret, s3SecretKey, false),
		secretVariable("AWS_SESSION_TOKEN", secret, s3SessionToken, true))
	if d.S3.CASecretRef != nil {
		c.Args = append(c.Args, "--s3-ca-file="+s3Directory+"/"+AuthorityKey)
		j.volume("s3-ca", s3Directory, secretVolume(d.S3.CASecretRef.Name, AuthorityKey))
	}
}

// encryption mounts one key of the Secret with recipients or identities.
func (j job) encryption(e *v1alpha1.BackupEncryption, key, flag string) {
	if e == nil {
		return
	}
	j.container().Args = append(j.container().Args, flag+encryptionDirectory+"/"+key)
	j.volume("encryption", encryptionDirectory, secretVolume(e.SecretRef.Name, key))
}

func secretVolume(name, key string) corev1.VolumeSource {
	return corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{
		SecretName: name, Items: []corev1.KeyToPath{item(key, key)}, DefaultMode: ptr.To[int32](0o440),
	}}
}

func secretVariable(name string, secret corev1.LocalObjectReference, key string, optional bool) corev1.EnvVar {
	return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
		LocalObjectReference: secret, Key: key, Optional: ptr.To(optional),
	}}}
}
