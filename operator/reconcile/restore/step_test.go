package restore

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"filippo.io/age"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/apiserver/backup/format"
	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/encryption"
	"quorate.dev/operator/observed"
	"quorate.dev/operator/pki"
	"quorate.dev/operator/reconcile/owned/ownedtest"
	"quorate.dev/operator/reconcile/preparation"
)

// restoring returns a host with the completed backup monday of the cluster former, and a cluster that restores it.
func restoring(t *testing.T, changes ...func(*v1alpha1.Restore)) *ownedtest.Host {
	t.Helper()
	cluster := ownedtest.NewCluster(func(c *v1alpha1.ApiServerCluster) {
		c.Spec.Restore = &v1alpha1.Restore{From: v1alpha1.RestoreSource{BackupName: "monday"}}
		c.Status.Membership = &v1alpha1.Membership{InitialMembers: []string{"demo-0"}}
		for _, change := range changes {
			change(c.Spec.Restore)
		}
	})
	return ownedtest.NewHost(t, cluster, completedBackup("monday", v1alpha1.ApiServerBackupStatus{ManifestSHA256: "00ff"}))
}

// step executes Restore, and stores the status as the end of a reconciliation does.
func step(h *ownedtest.Host, now time.Time) (completed bool, err error) {
	cluster := h.Cluster()
	claim := *desired.Claim(cluster, "demo-0")
	completed, err = Restore(h.Context(), h.Objects, &observed.State{
		Cluster: cluster, Image: "quorate:1", Claims: []corev1.PersistentVolumeClaim{claim},
	}, now)
	if err == nil && !completed {
		restore := cluster.Status.Restore
		ownedtest.Change(h, "demo", &v1alpha1.ApiServerCluster{}, func(c *v1alpha1.ApiServerCluster) {
			c.Status.Restore = restore
		})
	}
	return completed, err
}

// end reports that the pod of the restore has terminated.
func end(h *ownedtest.Host, phase corev1.PodPhase, message string) {
	ownedtest.Change(h, "demo-restore", &corev1.Pod{}, func(pod *corev1.Pod) {
		pod.Status = corev1.PodStatus{Phase: phase, ContainerStatuses: []corev1.ContainerStatus{{
			Name: desired.ContainerName, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
				Message: message, FinishedAt: metav1.NewTime(ownedtest.Now()),
			}},
		}}}
	})
}

// result returns the termination message of a pod that has restored a backup.
func result(t *testing.T, edit func(*format.Result)) string {
	t.Helper()
	r := format.Result{
		Location: "file:///backups/monday", Verification: format.VerifiedByManifestDigest, Manifest: format.Manifest{
			Namespace: "ns", Cluster: "former", Snapshot: format.Snapshot{Revision: 7},
		},
	}
	edit(&r)
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// keys returns a Secret with service-account keys.
func keys(t *testing.T, name string) (*corev1.Secret, pki.Pair) {
	t.Helper()
	pair, err := pki.NewServiceAccountKey()
	if err != nil {
		t.Fatal(err)
	}
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Data: map[string][]byte{
		desired.ServiceAccountPublicKey: pair.Certificate, desired.ServiceAccountPrivateKey: pair.Key,
	}}, pair
}

// TestRestore follows a restore: a failed pod is repeated after a while, a completed restore has the key of the former
// cluster, and its pod is deleted.
func TestRestore(t *testing.T) {
	h := restoring(t)
	secret, pair := keys(t, "former-service-account")
	h.CreateAll(secret)
	expect := func(after time.Duration, completed, exists bool, reason string) {
		t.Helper()
		got, err := step(h, ownedtest.Now().Add(after))
		h.Must(err)
		if got != completed || h.Exists("demo-restore", &corev1.Pod{}) != exists ||
			h.Cluster().Status.Restore.Reason != reason {
			t.Errorf("completed %t, pod %t, %+v", got, h.Exists("demo-restore", &corev1.Pod{}), h.Cluster().Status.Restore)
		}
	}
	expect(0, false, true, v1alpha1.ReasonRestoring)
	end(h, corev1.PodFailed, "Error: disk full")
	expect(time.Second, false, true, v1alpha1.ReasonRestoreFailed)
	expect(time.Second, false, true, v1alpha1.ReasonRestoreFailed)
	expect(preparation.RetryInterval, false, false, v1alpha1.ReasonRestoreFailed)
	expect(preparation.RetryInterval, false, true, v1alpha1.ReasonRestoreFailed)
	if events := strings.Join(h.Events(), "\n"); strings.Count(events, "disk full") != 1 {
		t.Errorf("events %q", events)
	}
	end(h, corev1.PodSucceeded, result(t, func(r *format.Result) {
		r.Manifest.ServiceAccountKey = format.Fingerprint(pair.Certificate)
	}))
	expect(0, true, true, "")
	if s := h.Cluster().Status.Restore; !s.Completed || s.Revision != 7 ||
		h.Secret("demo-service-account")[desired.ServiceAccountPrivateKey] != string(pair.Key) {
		t.Errorf("%+v", s)
	}
	_, err := step(h, ownedtest.Now())
	h.Must(err)
	if h.Exists("demo-restore", &corev1.Pod{}) {
		t.Error("the pod of a completed restore stays")
	}
}

// TestBlocked checks the objects for which a restore waits, from the volume to the keys of the former cluster.
func TestBlocked(t *testing.T) {
	key := func(name string) func(*v1alpha1.Restore) {
		return func(r *v1alpha1.Restore) { r.ServiceAccountKeySecretRef = &corev1.LocalObjectReference{Name: name} }
	}
	encrypted := func(r *format.Result) { r.Manifest.Snapshot.EncryptionKeys = []string{"secretbox:v1:key-1"} }
	same := func(*format.Result) {}
	for name, test := range map[string]struct {
		change  func(*v1alpha1.Restore)
		result  func(*format.Result) // nil: the pod is not created
		reason  string               // "": the restore is completed
		message string
	}{
		"no backup": {
			func(r *v1alpha1.Restore) { r.From.BackupName = "none" }, nil,
			v1alpha1.ReasonBackupNotAvailable, "none does not exist",
		},
		"no identities": {func(r *v1alpha1.Restore) {
			r.Encryption = &v1alpha1.BackupEncryption{SecretRef: corev1.LocalObjectReference{Name: "none"}}
		}, nil, v1alpha1.ReasonObjectMissing, "none"},
		"earlier image": {
			func(*v1alpha1.Restore) {}, func(r *format.Result) { r.Verification = "" },
			v1alpha1.ReasonRestoreFailed, "earlier release",
		},
		"no key": {
			func(*v1alpha1.Restore) {}, same, v1alpha1.ReasonServiceAccountKeyMissing, "former-service-account does not exist",
		},
		"new key": {
			func(r *v1alpha1.Restore) { r.ServiceAccountKeyPolicy = v1alpha1.ReplaceServiceAccountKey }, same, "", "",
		},
		"named key":    {key("keys"), same, "", ""},
		"no named key": {key("none"), same, v1alpha1.ReasonServiceAccountKeyMissing, "Secret none does not exist"},
		"empty key":    {key("empty"), same, v1alpha1.ReasonServiceAccountKeyMissing, "Secret empty lacks"},
		"another key": {
			key("keys"), func(r *format.Result) { r.Manifest.ServiceAccountKey = "0123" },
			v1alpha1.ReasonServiceAccountKeyMissing, "has fingerprint",
		},
		"no encryption keys": {
			key("keys"), encrypted, v1alpha1.ReasonEncryptionKeysMissing,
			"the keys secretbox:v1:key-1 are missing in Secret former-" + desired.EncryptionSecret + ", which does not exist",
		},
		"no named encryption keys": {func(r *v1alpha1.Restore) {
			r.EncryptionKeysSecretRef = &corev1.LocalObjectReference{Name: "empty"}
		}, encrypted, v1alpha1.ReasonEncryptionKeysMissing, "Secret empty"},
		"foreign encryption keys": {
			key("keys"), func(r *format.Result) { encrypted(r); r.Manifest.Namespace = "others" },
			v1alpha1.ReasonEncryptionKeysMissing, "missing in the backup",
		},
		"invalid encryption keys": {func(r *v1alpha1.Restore) {
			r.EncryptionKeysSecretRef = &corev1.LocalObjectReference{Name: "invalid"}
		}, encrypted, v1alpha1.ReasonEncryptionKeysMissing, "Secret invalid has no encryption keys"},
	} {
		t.Run(name, func(t *testing.T) {
			h := restoring(t, test.change)
			secret, _ := keys(t, "keys")
			h.CreateAll(secret, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "empty"}},
				&corev1.Secret{
					ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "invalid"}, Data: map[string][]byte{
						desired.EncryptionStateKey: []byte("{"),
					},
				})
			_, err := step(h, ownedtest.Now())
			h.Must(err)
			if created := h.Exists("demo-restore", &corev1.Pod{}); created != (test.result != nil) {
				t.Fatalf("pod created: %t, %+v", created, h.Cluster().Status.Restore)
			}
			if test.result != nil {
				end(h, corev1.PodSucceeded, result(t, test.result))
				_, err := step(h, ownedtest.Now())
				h.Must(err)
			}
			s := h.Cluster().Status.Restore
			if s.Reason != test.reason || !strings.Contains(s.Message, test.message) || s.Completed != (test.reason == "") {
				t.Errorf("%+v, want %s: %s", s, test.reason, test.message)
			}
		})
	}
}

// TestSealedKeys checks that all keys of an encrypted backup are restored with the identities in the user's Secret.
func TestSealedKeys(t *testing.T) {
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	_, pair := keys(t, "")
	scheme, err := encryption.Scheme{Resources: []string{"secrets"},
		Provider: encryption.Provider{Kind: encryption.Secretbox}}.WithKey(encryption.Scheme{}, true, ownedtest.Now())
	if err != nil {
		t.Fatal(err)
	}
	atRest := desired.EncryptionKeys(ownedtest.NewCluster(), encryption.State{Current: scheme},
		nil).Data[desired.EncryptionStateKey]
	sealed, err :=
		format.Seal(format.Keys{ServiceAccountPublic: pair.Certificate, ServiceAccountPrivate: pair.Key, Encryption: atRest},
			[]byte(identity.Recipient().String()))
	if err != nil {
		t.Fatal(err)
	}
	h := restoring(t, func(r *v1alpha1.Restore) {
		r.Encryption = &v1alpha1.BackupEncryption{SecretRef: corev1.LocalObjectReference{Name: "identities"}}
	})
	h.CreateAll(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "identities"}, Data: map[string][]byte{
		desired.IdentitiesKey: []byte(identity.String()),
	}})
	_, err = step(h, ownedtest.Now())
	h.Must(err)
	end(h, corev1.PodSucceeded, result(t, func(r *format.Result) {
		r.Manifest.SealedKeys, r.Manifest.Snapshot.EncryptionKeys = sealed, []string{"secretbox:v1:" + scheme.Provider.Name}
	}))
	if completed, err := step(h, ownedtest.Now()); err != nil || !completed {
		t.Fatalf("completed %t, %v: %+v", completed, err, h.Cluster().Status.Restore)
	}
	if h.Secret("demo-service-account")[desired.ServiceAccountPrivateKey] != string(pair.Key) ||
		!h.Exists("demo-"+desired.EncryptionSecret, &corev1.Secret{}) {
		t.Errorf("objects %v", h.Names())
	}
}

// TestPods checks that a restore waits for its volume, that the pod of another backup is replaced, and that a pod that
// cannot start is reported once.
func TestPods(t *testing.T) {
	h := restoring(t)
	if _, err := Restore(t.Context(), h.Objects, &observed.State{Cluster: h.Cluster()}, ownedtest.Now()); err != nil ||
		len(h.Names()) != 1 {
		t.Errorf("without the volume: objects %v, %v", h.Names(), err)
	}
	if completed, err := Restore(
		t.Context(), h.Objects, &observed.State{Cluster: ownedtest.NewCluster()}, ownedtest.Now(),
	); err != nil || completed {
		t.Errorf("without a restore: %t, %v", completed, err)
	}
	_, err := step(h, ownedtest.Now())
	h.Must(err)
	h.Events()
	ownedtest.Change(h, "demo-restore", &corev1.Pod{}, func(pod *corev1.Pod) {
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
			Name: desired.ContainerName, State: corev1.ContainerState{
				Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull"},
			},
		}}
	})
	for range 2 {
		_, err = step(h, ownedtest.Now())
		h.Must(err)
	}
	if events := h.Events(); len(events) != 1 || h.Cluster().Status.Restore.Reason != v1alpha1.ReasonPodNotStarting {
		t.Errorf("events %q", events)
	}
	ownedtest.Change(h, "demo", &v1alpha1.ApiServerCluster{}, func(c *v1alpha1.ApiServerCluster) {
		c.Spec.Restore.From.BackupName = "tuesday"
	})
	_, err = step(h, ownedtest.Now())
	h.Must(err)
	if h.Exists("demo-restore", &corev1.Pod{}) {
		t.Error("the pod restores another backup")
	}
}

// TestFailedRequests lets each request fail with which the pod is created and its result is stored.
func TestFailedRequests(t *testing.T) {
	do := func(h *ownedtest.Host) error {
		_, err := step(h, ownedtest.Now().Add(time.Hour))
		return err
	}
	ownedtest.FailEach(t, func(t *testing.T) *ownedtest.Host { return restoring(t) }, do)
	ownedtest.FailEach(t, func(t *testing.T) *ownedtest.Host {
		h := restoring(t)
		secret, _ := keys(t, "former-service-account")
		h.CreateAll(secret)
		h.Must(do(h))
		end(h, corev1.PodSucceeded, result(t, func(r *format.Result) { r.Verification = format.VerifiedBySnapshotDigest }))
		return h
	}, do)
	h := restoring(t)
	h.Must(do(h))
	end(h, corev1.PodSucceeded, "nonsense")
	if err := do(h); err == nil || errors.Is(err, ownedtest.ErrUnavailable) {
		t.Errorf("a result that cannot be parsed: %v", err)
	}
}
