package restore

import (
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"quorate.dev/apiserver/backup/format"
	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/reconcile/owned"
	"quorate.dev/operator/reconcile/preparation"
)

const verificationKey = "ed25519:GZpDmBFDPkVXfBqCCsNkWLK4R1mLDOBjGDCsbnBSmXQ="

// completedBackup returns a completed ApiServerBackup of the cluster former.
func completedBackup(name string, s v1alpha1.ApiServerBackupStatus) *v1alpha1.ApiServerBackup {
	b := &v1alpha1.ApiServerBackup{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
	b.Spec.ClusterName = "former"
	b.Spec.Destination.Volume = &v1alpha1.VolumeDestination{ClaimName: "backups"}
	s.Phase, s.Path = v1alpha1.BackupCompleted, "ns/former/"+name
	b.Status = s
	return b
}

// jobWith returns a job that reads backups, for a cluster that is restored from a source.
func jobWith(t *testing.T, from v1alpha1.RestoreSource, stored ...client.Object) *job {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	cluster := &v1alpha1.ApiServerCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "demo", UID: "demo"}}
	cluster.Spec.Restore = &v1alpha1.Restore{From: from}
	reader := fake.NewClientBuilder().WithScheme(scheme).WithObjects(stored...).Build()
	return &job{Objects: owned.Objects{Reader: reader}, cluster: cluster}
}

// TestRestoreVerifies checks what the pod compares a backup with: the digests in the status of its ApiServerBackup, or
// those that the spec has for its location. Without any, no pod is created unless the spec skips the verification.
func TestRestoreVerifies(t *testing.T) {
	location := func(key, digest string) *v1alpha1.BackupLocation {
		return &v1alpha1.BackupLocation{
			Destination: v1alpha1.BackupDestination{Volume: &v1alpha1.VolumeDestination{ClaimName: "backups"}},
			Path:        "ns/former/b", VerificationKey: key, ManifestSHA256: digest,
		}
	}
	const digest, stored = "00ff", "ff00"
	backups := []client.Object{
		completedBackup("signed", v1alpha1.ApiServerBackupStatus{ManifestSHA256: digest, SHA256: stored}),
		completedBackup("former", v1alpha1.ApiServerBackupStatus{SHA256: stored}),
		completedBackup("unknown", v1alpha1.ApiServerBackupStatus{}),
	}
	for name, test := range map[string]struct {
		from   v1alpha1.RestoreSource
		want   []string // flags of the pod
		reason string
	}{
		"digest of the manifest": {
			v1alpha1.RestoreSource{BackupName: "signed"}, []string{"--manifest-sha256=" + digest}, "",
		},
		"backup of a former release": {
			v1alpha1.RestoreSource{BackupName: "former"}, []string{"--stored-sha256=" + stored}, "",
		},
		"no digest": {v1alpha1.RestoreSource{BackupName: "unknown"}, nil, v1alpha1.ReasonBackupNotVerifiable},
		"no backup": {v1alpha1.RestoreSource{BackupName: "none"}, nil, v1alpha1.ReasonBackupNotAvailable},
		"no key":    {v1alpha1.RestoreSource{Location: location("", "")}, nil, v1alpha1.ReasonBackupNotVerifiable},
		"key": {
			v1alpha1.RestoreSource{Location: location(verificationKey, "")},
			[]string{"--verification-key=" + verificationKey}, "",
		},
		"key and digest": {v1alpha1.RestoreSource{Location: location(verificationKey, digest)},
			[]string{"--manifest-sha256=" + digest, "--verification-key=" + verificationKey}, ""},
		"skipped": {
			v1alpha1.RestoreSource{Location: location("", ""), Verification: v1alpha1.SkipVerification},
			[]string{"--unverified"}, "",
		},
		"skipped for a name": {v1alpha1.RestoreSource{BackupName: "signed", Verification: v1alpha1.SkipVerification},
			[]string{"--unverified"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			j := jobWith(t, test.from, backups...)
			backup, reason, message, err := preparation.StoredBackup(t.Context(), j.Reader, "ns", test.from)
			if err != nil || reason != test.reason || (message == "") != (reason == "") {
				t.Fatalf("%s: %s, %v, want %q", reason, message, err, test.reason)
			}
			if reason != "" {
				return
			}
			var got []string
			for _, argument := range desired.RestorePod(j.cluster, "quorate:1", "demo-0", backup).Spec.Containers[0].Args {
				if strings.Contains(argument, "sha256") || strings.Contains(argument, "verif") {
					got = append(got, argument)
				}
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("flags %q, want %q", got, test.want)
			}
		})
	}
}

// TestKeysOfFormerBackups checks that the operator ignores the keys and the name of the cluster in the manifest of a
// backup of an earlier release, which nothing authenticates. It uses the Secrets of the cluster in the ApiServerBackup.
func TestKeysOfFormerBackups(t *testing.T) {
	j := jobWith(t, v1alpha1.RestoreSource{BackupName: "monday"},
		completedBackup("monday", v1alpha1.ApiServerBackupStatus{SHA256: "ff00"}))
	forged := format.Manifest{Namespace: "ns", Cluster: "other", SealedKeys: []byte("forged")}
	for v, want := range map[format.Verification]format.Manifest{
		format.VerifiedBySnapshotDigest: {Namespace: "ns", Cluster: "former"}, format.VerifiedByManifestDigest: forged,
	} {
		m, err := j.verifiedManifest(t.Context(), format.Result{Verification: v, Manifest: forged})
		if err != nil || m.Cluster != want.Cluster || m.Namespace != want.Namespace ||
			string(m.SealedKeys) != string(want.SealedKeys) {
			t.Errorf("%s: %+v, %v", v, m, err)
		}
	}
}
