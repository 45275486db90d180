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
	backupDirectory     = "/backups" // mount path of the destination's volume
	encryptionDirectory = "/etc/quorate/encryption"
	s3Directory         = "/etc/quorate/s3"
	signingDirectory    = "/etc/quorate/backup-signing"

	// ContainerName is the name of the container in the pods of backups, restores and recoveries.
	ContainerName = "backup"
)

// Keys of Secrets for backups that users create.
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

// BackupSigningSecret is the suffix of the Secret with the key that signs the backups of a cluster.
const BackupSigningSecret = "backup-signing"

// Keys of the Secret BackupSigningSecret.
const (
	SigningKey      = "signing.key"      // PEM
	VerificationKey = "verification-key" // verifies signatures by SigningKey
)

// BackupSigning returns the Secret with the key that signs the backups of a cluster. The Secret may be deleted together
// with the cluster, because the verification key is in the status of each ApiServerBackup.
func BackupSigning(cluster *v1alpha1.ApiServerCluster, key []byte, verification string) *corev1.Secret {
	return secret(cluster, BackupSigningSecret, corev1.SecretTypeOpaque, map[string][]byte{
		SigningKey: key, VerificationKey: []byte(verification),
	})
}

// Expectation holds the digests and the key with which a restore verifies that the backup was not replaced in its
// storage.
type Expectation struct {
	ManifestSHA256  string
	StoredSHA256    string // digest of the stored snapshot; the only digest in the status of backups of earlier releases
	VerificationKey string
	Unverified      bool // spec.restore skips the verification
}

// Known reports whether the restore would detect that the backup was replaced, or the user has skipped the
// verification.
func (e Expectation) Known() bool {
	return e.Unverified || e.ManifestSHA256 != "" || e.StoredSHA256 != "" || e.VerificationKey != ""
}

// flags returns the verification flags of the command that restores the backup. An image of an earlier release rejects
// unknown flags and exits, so it never restores a backup without the verification.
func (e Expectation) flags() []string {
	if e.Unverified {
		return []string{"--unverified"}
	}
	var flags []string
	for _, flag := range []struct{ name, value string }{
		{"--manifest-sha256=", e.ManifestSHA256}, {"--stored-sha256=", e.StoredSHA256}, {
			"--verification-key=", e.VerificationKey,
		},
	} {
		if flag.value != "" {
			flags = append(flags, flag.name+flag.value)
		}
	}
	return flags
}

// Keys describes the keys of a cluster that a backup refers to or contains.
type Keys struct {
	Fingerprint string // fingerprint of the public service-account key
	// Service-account key and keys of encryption at rest, encrypted; nil if the backup is not encrypted.
	Sealed []byte
}

// BackupPod returns the pod of an attempt to create a backup. The pod runs the image of the cluster and connects to the
// given client URLs. It has no access to any API and no private service-account key.
func BackupPod(
	backup *v1alpha1.ApiServerBackup, cluster *v1alpha1.ApiServerCluster, image string, endpoints []string, keys Keys,
) *corev1.Pod {
	args := []string{
		"backup", "create", "--uid=" + string(backup.UID), "--namespace=" + backup.Namespace, "--cluster=" + cluster.Name,
		"--service-account-key-fingerprint=" + keys.Fingerprint,
		"--cacert=" + mounted("etcd-client-ca.crt"), "--cert=" + mounted("etcd-client.crt"),
		"--key=" + mounted("etcd-client.key"),
	}
	for _, endpoint := range endpoints {
		args = append(args, "--endpoints="+endpoint)
	}
	job := newJob(BackupPodName(backup), backup.Namespace, cluster, image, args)
	job.pod.Labels[EtcdClientLabel] = cluster.Name
	job.timeout(backup.Spec.TimeoutSeconds)
	job.destination(backup.Spec.Destination, backup.Status.Path)
	job.volume("certificates", certificateDirectory, corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
		Sources: []corev1.VolumeProjection{
			leafSource(cluster, "etcd-client"), authoritySource(cluster, EtcdClientDomain),
		},
		DefaultMode: ptr.To[int32](0o440),
	}})
	job.encryption(backup.Spec.Encryption, RecipientsKey, "--recipients-file=")
	job.volume("signing", signingDirectory, secretVolume(SecretName(cluster, BackupSigningSecret), SigningKey))
	job.container().Env = append(job.container().Env, corev1.EnvVar{
		Name: "QUORATE_SIGNING_KEY_FILE", Value: signingDirectory + "/" + SigningKey,
	})
	if keys.Sealed != nil {
		job.container().Env = append(job.container().Env,
			corev1.EnvVar{Name: "QUORATE_SEALED_KEYS", Value: base64.StdEncoding.EncodeToString(keys.Sealed)})
	}
	return job.pod
}

// SecretKeys names a Secret and the keys that it must contain.
type SecretKeys struct {
	Name string
	Keys []string
}

// BackupSecrets returns the user's Secrets that the pod of a backup needs.
func BackupSecrets(backup *v1alpha1.ApiServerBackup) (all []SecretKeys) {
	return storageSecrets(backup.Spec.Destination, backup.Spec.Encryption, RecipientsKey)
}

// RestoreSecrets returns the user's Secrets that the pod of a restore needs.
func RestoreSecrets(destination v1alpha1.BackupDestination, encryption *v1alpha1.BackupEncryption) []SecretKeys {
	return storageSecrets(destination, encryption, IdentitiesKey)
}

func storageSecrets(
	destination v1alpha1.BackupDestination, encryption *v1alpha1.BackupEncryption, key string,
) (all []SecretKeys) {
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

// BackupClusterSecrets returns the cluster's Secrets that the pod of a backup needs.
func BackupClusterSecrets(cluster *v1alpha1.ApiServerCluster) []SecretKeys {
	return []SecretKeys{
		{SecretName(cluster, ServiceAccountSecret), []string{ServiceAccountPublicKey, ServiceAccountPrivateKey}},
		{SecretName(cluster, "etcd-client"), []string{corev1.TLSCertKey, corev1.TLSPrivateKeyKey}},
		{SecretName(cluster, EtcdClientDomain), []string{corev1.TLSCertKey}},
	}
}

// BackupPodName returns the name of the pod of the current attempt. A backup may have the same name as a cluster, but
// the suffix keeps its pod from having the name of a replica, which ends in a hyphen and a number.
func BackupPodName(backup *v1alpha1.ApiServerBackup) string {
	return backup.Name + "-try" + strconv.Itoa(int(backup.Status.Attempts))
}

// DeletePod returns the pod that deletes the stored data of a backup. If the ApiServerCluster does not exist any more,
// only its name and namespace are set in cluster.
func DeletePod(backup *v1alpha1.ApiServerBackup, cluster *v1alpha1.ApiServerCluster, image string) *corev1.Pod {
	job := newJob(DeletePodName(backup), backup.Namespace, cluster, image, []string{
		"backup", "delete", "--uid=" + string(backup.UID),
	})
	job.destination(backup.Spec.Destination, backup.Status.Path)
	return job.pod
}

// DeletePodName returns the name of the pod that deletes the data of a backup.
func DeletePodName(backup *v1alpha1.ApiServerBackup) string { return backup.Name + "-delete" }

// StoredBackup is a backup to restore: its location, and the digests and key that verify it.
type StoredBackup struct {
	Location v1alpha1.BackupLocation
	Expected Expectation
}

// RestorePod returns the pod that restores the backup of spec.restore into the volume of the first member.
func RestorePod(cluster *v1alpha1.ApiServerCluster, image, member string, backup StoredBackup) *corev1.Pod {
	return restorePod(restore{
		pod: RestorePodName(cluster), cluster: cluster, image: image, uid: RestoreUID(cluster), member: member,
		StoredBackup: backup, encryption: cluster.Spec.Restore.Encryption,
	})
}

// RecoveryFromBackupPod returns the pod that restores a backup into the volume of the member in status.recovery.
func RecoveryFromBackupPod(cluster *v1alpha1.ApiServerCluster, image string, backup StoredBackup) *corev1.Pod {
	r := cluster.Status.Recovery
	return restorePod(restore{
		pod: RecoveryPodName(cluster), cluster: cluster, image: image, uid: RecoveryUID(cluster), member: r.Member,
		StoredBackup: backup, encryption: r.Request.Encryption,
	})
}

// RecoveryPod returns the pod that makes the member in status.recovery the only member of a new etcd cluster, with the
// data in its volume.
func RecoveryPod(cluster *v1alpha1.ApiServerCluster, image string) *corev1.Pod {
	member := cluster.Status.Recovery.Member
	job := newJob(RecoveryPodName(cluster), cluster.Namespace, cluster, image,
		append([]string{"etcd", "recover", "--uid=" + RecoveryUID(cluster)}, newMember(cluster, member)...))
	job.data(member)
	return job.pod
}

// RecoveryPodName returns the name of the pod that prepares the data of a recovery.
func RecoveryPodName(cluster *v1alpha1.ApiServerCluster) string { return cluster.Name + "-recovery" }

// RestoreUID identifies a restore by the UID of the cluster and a hash of spec.restore.from: if the user changes the
// source, pods of the former restore are replaced.
func RestoreUID(cluster *v1alpha1.ApiServerCluster) string {
	return string(cluster.UID) + "/" + hash(cluster.Spec.Restore.From)
}

// RecoveryUID identifies the recovery in status.recovery.
func RecoveryUID(cluster *v1alpha1.ApiServerCluster) string {
	return string(cluster.UID) + "/" + cluster.Status.Recovery.Request.RequestID
}

// restore describes a pod that restores a backup into the volume of a member.
type restore struct {
	StoredBackup
	pod, image, uid, member string
	cluster                 *v1alpha1.ApiServerCluster
	encryption              *v1alpha1.BackupEncryption
}

func restorePod(r restore) *corev1.Pod {
	args := append([]string{"backup", "restore", "--uid=" + r.uid}, newMember(r.cluster, r.member)...)
	args = append(args, r.Expected.flags()...)
	// Use the member's volume for temporary files. It has room for the database; the node may not.
	job := newJob(r.pod, r.cluster.Namespace, r.cluster, r.image, append(args, "--scratch="+dataDirectory))
	job.data(r.member)
	job.destination(r.Location.Destination, r.Location.Path)
	job.encryption(r.encryption, IdentitiesKey, "--identities-file=")
	return job.pod
}

// newMember returns the flags for the data directory of the only member of a new etcd cluster.
func newMember(cluster *v1alpha1.ApiServerCluster, member string) []string {
	return []string{
		"--data-dir=" + dataDirectory + "/etcd", "--name=" + member,
		"--initial-advertise-peer-url=" + PeerURL(cluster, member), "--initial-cluster-token=" + token(cluster),
	}
}

// RestorePodName returns the name of the pod that restores the backup of a new cluster.
func RestorePodName(cluster *v1alpha1.ApiServerCluster) string { return cluster.Name + "-restore" }

// JobUID returns the value of the flag --uid of a pod (RestoreUID or RecoveryUID), or "" if the pod is not a pod of a
// restore or recovery.
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

// job builds a pod that runs a command once. The result of the command is the termination message.
type job struct{ pod *corev1.Pod }

func newJob(name, namespace string, cluster *v1alpha1.ApiServerCluster, image string, args []string) job {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, Labels: map[string]string{
			NameLabel: "quorate", "app.kubernetes.io/instance": cluster.Name, ManagedByLabel: ManagedBy, RoleLabel: RoleBackup,
		}},
		Spec: podSpec(cluster, Replica{}, memberStopTime),
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

// destination mounts the volume of a destination, or sets the flags and credentials for its bucket.
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

// encryption mounts one key of the Secret with recipients or identities, and sets the flag for its file.
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
