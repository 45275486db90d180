package desired

import (
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	backupcommand "quorate.dev/apiserver/backup"
	"quorate.dev/apiserver/etcdctl"
	"quorate.dev/operator/api/v1alpha1"
)

func toVolume() v1alpha1.BackupDestination {
	return v1alpha1.BackupDestination{Volume: &v1alpha1.VolumeDestination{ClaimName: "backups", Path: "etcd"}}
}

func toBucket() v1alpha1.BackupDestination {
	return v1alpha1.BackupDestination{S3: &v1alpha1.S3Destination{
		Endpoint: "https://s3.example.org", Bucket: "backups", Prefix: "clusters", Region: "eu-central-1", PathStyle: true,
		CredentialsSecretRef: corev1.LocalObjectReference{Name: "s3"},
		CASecretRef:          &corev1.LocalObjectReference{Name: "s3-ca"},
	}}
}

func encryptedWith(secret string) *v1alpha1.BackupEncryption {
	return &v1alpha1.BackupEncryption{SecretRef: corev1.LocalObjectReference{Name: secret}}
}

// monday returns a backup whose second attempt runs.
func monday(to v1alpha1.BackupDestination, encryption *v1alpha1.BackupEncryption) *v1alpha1.ApiServerBackup {
	backup := &v1alpha1.ApiServerBackup{ObjectMeta: metav1.ObjectMeta{Name: "monday", Namespace: "ns", UID: "backup-uid"}}
	backup.Spec = v1alpha1.ApiServerBackupSpec{ClusterName: "demo", Destination: to, Encryption: encryption}
	backup.Status.Attempts, backup.Status.Path = 2, BackupPath(backup)
	return backup
}

// restoring returns a cluster that is restored from a backup, and recovered from another one.
func restoring() *v1alpha1.ApiServerCluster {
	cluster := demo(func(s *v1alpha1.ApiServerClusterSpec) {
		s.Restore = &v1alpha1.Restore{
			From: v1alpha1.RestoreSource{BackupName: "monday"}, Encryption: encryptedWith("restore-identities"),
		}
	})
	cluster.Status.Recovery = &v1alpha1.RecoveryStatus{Member: "demo-2", Request: v1alpha1.Recovery{
		RequestID: "2026-01-31", Encryption: encryptedWith("recovery-identities"),
	}}
	return cluster
}

// testJob is a pod that runs a command once, and the users' Secrets that the pod needs according to the operator.
type testJob struct {
	pod     *corev1.Pod
	secrets []SecretKeys
}

// jobs returns a pod of each kind that creates, restores or deletes a backup or recovers a member.
func jobs() map[string]testJob {
	cluster, endpoints := restoring(), []string{"https://demo-0:2379", "https://demo-1:2379"}
	plain, encrypted := monday(toVolume(), nil), monday(toBucket(), encryptedWith("recipients"))
	plain.Spec.TimeoutSeconds = ptr.To[int32](60)
	stored := StoredBackup{
		Location: v1alpha1.BackupLocation{Destination: toBucket(), Path: encrypted.Status.Path},
		Expected: Expectation{ManifestSHA256: "manifest", StoredSHA256: "stored", VerificationKey: "ed25519:key"},
	}
	inVolume := StoredBackup{
		Location: v1alpha1.BackupLocation{Destination: toVolume(), Path: plain.Status.Path},
		Expected: Expectation{Unverified: true},
	}
	return map[string]testJob{
		"create in a volume": {
			BackupPod(plain, cluster, "quorate:1", endpoints, Keys{Fingerprint: "fingerprint"}), BackupSecrets(plain),
		},
		"create in a bucket": {
			BackupPod(encrypted, cluster, "quorate:1", endpoints, Keys{Fingerprint: "fingerprint", Sealed: []byte("sealed")}),
			BackupSecrets(encrypted),
		},
		"restore": {
			RestorePod(cluster, "quorate:1", "demo-0", stored),
			RestoreSecrets(stored.Location.Destination, cluster.Spec.Restore.Encryption),
		},
		"recover from a backup": {
			RecoveryFromBackupPod(cluster, "quorate:1", inVolume),
			RestoreSecrets(inVolume.Location.Destination, cluster.Status.Recovery.Request.Encryption),
		},
		"recover": {RecoveryPod(cluster, "quorate:1"), nil},
		"delete":  {DeletePod(encrypted, demo(nil), "quorate:1"), BackupSecrets(monday(toBucket(), nil))},
	}
}

// TestJobs compares the pods of jobs with a golden file, without the fields that they share with the pods of replicas.
func TestJobs(t *testing.T) {
	var objects []any
	all := jobs()
	for _, name := range []string{
		"create in a volume", "create in a bucket", "restore", "recover from a backup", "recover", "delete",
	} {
		pod := all[name].pod
		c := pod.Spec.Containers[0]
		objects = append(objects, map[string]any{
			"job": name, "name": pod.Name, "labels": pod.Labels, "args": c.Args, "env": c.Env, "mounts": c.VolumeMounts,
			"volumes": pod.Spec.Volumes, "restartPolicy": pod.Spec.RestartPolicy,
		})
	}
	golden(t, "jobs.yaml", objects...)
}

// TestCommandsOfJobs parses the arguments of jobs with the commands that they run.
func TestCommandsOfJobs(t *testing.T) {
	for name, job := range jobs() {
		args := job.pod.Spec.Containers[0].Args
		root := map[string]*cobra.Command{"backup": backupcommand.Command(), "etcd": etcdctl.Command()}[args[0]]
		if root == nil {
			t.Errorf("%s: %s is no command", name, args[0])
			continue
		}
		command, flags, err := root.Find(args[1:])
		if err == nil {
			err = command.ParseFlags(flags)
		}
		if err == nil {
			err = command.ValidateArgs(command.Flags().Args())
		}
		if err != nil || command == root {
			t.Errorf("%s: %q: %v", name, args, err)
		}
	}
}

// TestJobsMountTheirFiles checks that the volumes of each job contain all files that its arguments and variables name.
func TestJobsMountTheirFiles(t *testing.T) {
	for name, job := range jobs() {
		c := job.pod.Spec.Containers[0]
		values := slices.Clone(c.Args)
		for _, variable := range c.Env {
			values = append(values, "--"+variable.Name+"="+variable.Value)
		}
		for _, text := range values {
			_, value, _ := strings.Cut(text, "=")
			if strings.HasPrefix(value, "/") && value != corev1.TerminationMessagePathDefault && !hasFile(job.pod, value) {
				t.Errorf("%s: %s is not mounted", name, text)
			}
		}
	}
}

// hasFile reports whether a volume of the pod contains a file. Volumes that are no Secrets contain every file.
func hasFile(pod *corev1.Pod, file string) bool {
	for i, mount := range pod.Spec.Containers[0].VolumeMounts {
		if file != mount.MountPath && !strings.HasPrefix(file, mount.MountPath+"/") {
			continue
		}
		var items []corev1.KeyToPath
		switch volume := pod.Spec.Volumes[i]; {
		case volume.Secret != nil:
			items = volume.Secret.Items
		case volume.Projected != nil:
			for _, source := range volume.Projected.Sources {
				items = append(items, source.Secret.Items...)
			}
		default:
			return true
		}
		return slices.ContainsFunc(items, func(item corev1.KeyToPath) bool {
			return path.Join(mount.MountPath, item.Path) == file
		})
	}
	return false
}

// required returns the keys of Secrets without which the pod does not start.
func required(pod *corev1.Pod) map[string][]string {
	keys := map[string][]string{}
	for _, volume := range pod.Spec.Volumes {
		if volume.Secret != nil {
			for _, item := range volume.Secret.Items {
				keys[volume.Secret.SecretName] = append(keys[volume.Secret.SecretName], item.Key)
			}
		}
		if volume.Projected != nil {
			for _, source := range volume.Projected.Sources {
				for _, item := range source.Secret.Items {
					keys[source.Secret.Name] = append(keys[source.Secret.Name], item.Key)
				}
			}
		}
	}
	for _, variable := range pod.Spec.Containers[0].Env {
		if variable.ValueFrom != nil && !*variable.ValueFrom.SecretKeyRef.Optional {
			name := variable.ValueFrom.SecretKeyRef.Name
			keys[name] = append(keys[name], variable.ValueFrom.SecretKeyRef.Key)
		}
	}
	return keys
}

// TestSecretsOfJobs checks that the operator waits for exactly the users' Secrets without which a job would not start:
// for another one it would wait forever, and without a missing one the kubelet could not start the pod.
func TestSecretsOfJobs(t *testing.T) {
	for name, job := range jobs() {
		want := required(job.pod)
		for secret := range want {
			if strings.HasPrefix(secret, "demo-") { // a Secret of the cluster
				delete(want, secret)
			}
		}
		got := map[string][]string{}
		for _, secret := range job.secrets {
			got[secret.Name] = secret.Keys
		}
		if len(got) != len(want) {
			t.Errorf("%s: the operator checks %v, the pod needs %v", name, got, want)
		}
		for secret, keys := range want {
			if !slices.Equal(slices.Sorted(slices.Values(keys)), slices.Sorted(slices.Values(got[secret]))) {
				t.Errorf("%s: the operator checks keys %v of %s, the pod needs %v", name, got[secret], secret, keys)
			}
		}
	}
	checked := map[string][]string{}
	for _, secret := range BackupClusterSecrets(demo(nil)) {
		checked[secret.Name] = secret.Keys
	}
	for secret, keys := range required(jobs()["create in a volume"].pod) {
		if secret == "demo-"+BackupSigningSecret {
			continue // the operator creates it before the pod
		}
		for _, key := range keys {
			if !slices.Contains(checked[secret], key) {
				t.Errorf("the operator does not check key %s of the cluster's Secret %s", key, secret)
			}
		}
	}
}

// TestJobsAreConfined checks that a job, which has a user's credentials for a storage, has no key of an authority and
// no key of service-account tokens, cannot use an API, is not restarted by the kubelet, and gets no requests of
// clients.
func TestJobsAreConfined(t *testing.T) {
	cluster := demo(nil)
	for name, job := range jobs() {
		for secret, keys := range required(job.pod) {
			if strings.HasSuffix(secret, "-ca") && slices.Contains(keys, corev1.TLSPrivateKeyKey) ||
				strings.HasSuffix(secret, ServiceAccountSecret) || strings.HasSuffix(secret, EncryptionSecret) {
				t.Errorf("%s has the keys %v of %s", name, keys, secret)
			}
		}
		spec := job.pod.Spec
		p, s := spec.SecurityContext, spec.Containers[0].SecurityContext
		if *spec.AutomountServiceAccountToken || !*p.RunAsNonRoot || !*s.ReadOnlyRootFilesystem ||
			*s.AllowPrivilegeEscalation {
			t.Errorf("%s: got %+v, %+v", name, p, s)
		}
		if spec.RestartPolicy != corev1.RestartPolicyNever || len(spec.TopologySpreadConstraints) > 0 {
			t.Errorf("%s: got restart policy %s, constraints %v", name, spec.RestartPolicy, spec.TopologySpreadConstraints)
		}
		for _, service := range Services(cluster) {
			if labels.SelectorFromSet(service.Spec.Selector).Matches(labels.Set(job.pod.Labels)) {
				t.Errorf("%s: Service %s selects the pod", name, service.Name)
			}
		}
		creates := strings.HasPrefix(name, "create")
		for _, connection := range []struct {
			port    int32
			allowed bool
		}{{ClientPort, creates}, {PeerPort, false}} {
			member := labels.Set{ClusterLabel: "demo", RoleLabel: RoleMember}
			got := connects(t, NetworkPolicies(cluster, "quorate-system"), peer{"ns", job.pod.Labels}, member, connection.port)
			if got != connection.allowed {
				t.Errorf("%s: connection to port %d of a member: %v", name, connection.port, got)
			}
		}
	}
}

// TestScratchOfRestores checks that a restore stores its temporary files in the volume of the member that it restores,
// where the database has room.
func TestScratchOfRestores(t *testing.T) {
	for name, member := range map[string]string{
		"restore": "demo-0", "recover from a backup": "demo-2", "recover": "demo-2",
	} {
		pod := jobs()[name].pod
		i := slices.IndexFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == "data" })
		if claim := pod.Spec.Volumes[i].PersistentVolumeClaim.ClaimName; claim != member {
			t.Errorf("%s: got the volume of %s, want %s", name, claim, member)
		}
		args := pod.Spec.Containers[0].Args
		if !slices.Contains(args, "--name="+member) ||
			name != "recover" && !slices.Contains(args, "--scratch="+pod.Spec.Containers[0].VolumeMounts[i].MountPath) {
			t.Errorf("%s: got %q", name, args)
		}
	}
}

// TestExpectation checks how a restore verifies a backup, and which backups it does not restore because nothing would
// show that they were replaced.
func TestExpectation(t *testing.T) {
	for want, e := range map[string]Expectation{
		"":                             {},
		"--unverified":                 {Unverified: true, ManifestSHA256: "a"},
		"--manifest-sha256=a":          {ManifestSHA256: "a"},
		"--stored-sha256=b":            {StoredSHA256: "b"},
		"--verification-key=ed25519:c": {VerificationKey: "ed25519:c"},
		"--manifest-sha256=a --stored-sha256=b --verification-key=ed25519:c": {"a", "b", "ed25519:c", false},
	} {
		if got := strings.Join(e.flags(), " "); got != want || e.Known() != (want != "") {
			t.Errorf("%+v: got %q, known %v, want %q", e, got, e.Known(), want)
		}
	}
}

// TestRestoreUID checks that pods of a restore are replaced if the user changes the source of the restore, and only
// then, and that the UID of a pod can be read back.
func TestRestoreUID(t *testing.T) {
	cluster := restoring()
	uid := RestoreUID(cluster)
	if got := JobUID(jobs()["restore"].pod); got != uid {
		t.Errorf("got UID %q of the pod, want %q", got, uid)
	}
	if got, want := JobUID(jobs()["recover"].pod), RecoveryUID(cluster); got != want || want != "u/2026-01-31" {
		t.Errorf("got UID %q of the pod of a recovery, want %q", got, want)
	}
	cluster.Spec.Restore.Encryption, cluster.Spec.Replicas = nil, ptr.To[int32](1)
	if got := RestoreUID(cluster); got != uid {
		t.Errorf("got UID %q after a change of other fields, want %q", got, uid)
	}
	cluster.Spec.Restore.From.BackupName = "tuesday"
	if got := RestoreUID(cluster); got == uid {
		t.Errorf("got the same UID %q with another backup", got)
	}
	replica, err := Pod(demo(nil), "quorate:1", replicas["member"].replica, "")
	if err != nil {
		t.Fatal(err)
	}
	if got := JobUID(replica); got != "" {
		t.Errorf("got UID %q of the pod of a replica", got)
	}
}

// TestBackupPath checks that backups of different clusters and destinations have different paths.
func TestBackupPath(t *testing.T) {
	for want, to := range map[string]v1alpha1.BackupDestination{
		"etcd/ns/demo/monday": toVolume(), "clusters/ns/demo/monday": toBucket(),
		"ns/demo/monday": {Volume: &v1alpha1.VolumeDestination{ClaimName: "backups"}},
	} {
		if got := BackupPath(monday(to, nil)); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// TestBackupSigning checks that the key with which pods sign backups is the key in the Secret that they mount.
func TestBackupSigning(t *testing.T) {
	signing := BackupSigning(demo(nil), []byte("PEM"), "ed25519:key")
	keys := required(jobs()["create in a volume"].pod)[signing.Name]
	if len(keys) != 1 || string(signing.Data[keys[0]]) != "PEM" || string(signing.Data[VerificationKey]) != "ed25519:key" {
		t.Errorf("got Secret %s with %q, mounted keys %q", signing.Name, signing.Data, keys)
	}
}
