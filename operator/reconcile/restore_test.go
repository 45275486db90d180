package reconcile

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"filippo.io/age"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"quorate.dev/apiserver/backup/format"
	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/encryption"
	"quorate.dev/operator/pki"
	"quorate.dev/operator/reconcile/preparation"
	"quorate.dev/operator/reconcile/recovery"
)

const verificationKey = "ed25519:GZpDmBFDPkVXfBqCCsNkWLK4R1mLDOBjGDCsbnBSmXQ="

// restoring returns a cluster that waits for the restore of an encrypted backup.
func restoring(t *testing.T, spec v1alpha1.Restore) *cluster {
	t.Helper()
	c := newCluster(t)
	spec.From.Location = &v1alpha1.BackupLocation{
		Destination: v1alpha1.BackupDestination{Volume: &v1alpha1.VolumeDestination{ClaimName: "backups"}},
		Path:        "ns/former/b", VerificationKey: verificationKey,
	}
	object := &v1alpha1.ApiServerCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "demo", UID: "demo"}}
	object.Spec.Restore = &spec
	c.must(c.client.Create(t.Context(), object))
	return c
}

func (c *cluster) secretWith(name, key, value string) {
	c.t.Helper()
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Data: map[string][]byte{key: []byte(value)},
	}
	if err := c.client.Create(c.t.Context(), secret); err != nil {
		c.must(c.client.Update(c.t.Context(), secret))
	}
}

// expectBlocked reconciles, and fails unless the condition Restored has a reason and a message with the given parts,
// and no member has started.
func (c *cluster) expectBlocked(reason string, parts ...string) {
	c.t.Helper()
	for range 5 {
		c.reconcile()
	}
	got := meta.FindStatusCondition(c.get().Status.Conditions, v1alpha1.Restored)
	if got.Status != metav1.ConditionFalse || got.Reason != reason {
		c.t.Errorf("%+v, want reason %s", got, reason)
	}
	for _, part := range parts {
		if !strings.Contains(got.Message, part) {
			c.t.Errorf("message %q does not contain %q", got.Message, part)
		}
	}
	if strings.Contains(got.Message, "hunter2") {
		c.t.Errorf("message %q contains a key", got.Message)
	}
	if pods := c.members(); len(pods) > 0 {
		c.t.Errorf("%s: members started: %v", reason, pods)
	}
}

// members returns the names of the pods that run members.
func (c *cluster) members() (names []string) {
	c.t.Helper()
	var pods corev1.PodList
	c.must(c.client.List(c.t.Context(), &pods, client.MatchingLabels{desired.RoleLabel: desired.RoleMember}))
	for _, pod := range pods.Items {
		names = append(names, pod.Name)
	}
	return names
}

// endRestore terminates the pod that restores the backup.
func (c *cluster) endRestore(phase corev1.PodPhase, message string) {
	c.t.Helper()
	pod := &corev1.Pod{}
	c.must(c.client.Get(c.t.Context(), client.ObjectKey{Namespace: "ns", Name: "demo-restore"}, pod))
	pod.Status.Phase = phase
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: desired.ContainerName, State: corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{Message: message, FinishedAt: metav1.NewTime(c.clock.Now())},
	}}}
	c.must(c.client.Status().Update(c.t.Context(), pod))
}

// TestRestoreWithWrongIdentities checks that the condition names the Secret that cannot decrypt the backup, and that
// no member starts.
func TestRestoreWithWrongIdentities(t *testing.T) {
	c := restoring(t, v1alpha1.Restore{
		Encryption: &v1alpha1.BackupEncryption{SecretRef: corev1.LocalObjectReference{Name: "wrong"}},
	})
	c.expectBlocked(v1alpha1.ReasonObjectMissing, "Secret wrong does not exist")
	c.secretWith("wrong", "other", "x")
	c.expectBlocked(v1alpha1.ReasonObjectInvalid, "Secret wrong has no key identities")
	c.secretWith("wrong", desired.IdentitiesKey, "hunter2")
	c.expectBlocked(v1alpha1.ReasonObjectInvalid, "Secret wrong is invalid: the identities are not those of age")
	identity, err := age.GenerateX25519Identity()
	c.must(err)
	c.secretWith("wrong", desired.IdentitiesKey, identity.String())
	c.expectBlocked(v1alpha1.ReasonRestoring)
	c.endRestore(corev1.PodFailed, "Error: "+format.ErrNoIdentity.Error())
	c.expectBlocked(v1alpha1.ReasonRestoreFailed, "no identity matches", "Secret wrong")
	c.clock.Step(time.Minute) // preparation.RetryInterval has passed
	c.expectBlocked(v1alpha1.ReasonRestoreFailed, "no identity matches", "Secret wrong")
	c.endRestore(corev1.PodFailed, "Error: another error")
	c.expectBlocked(v1alpha1.ReasonRestoreFailed, "another error")
}

// TestRestoreWithWrongEncryptionKeys checks that the condition names the Secret without the keys, and that no member
// starts until they are found.
func TestRestoreWithWrongEncryptionKeys(t *testing.T) {
	key, err := pki.NewServiceAccountKey()
	if err != nil {
		t.Fatal(err)
	}
	scheme := func() (encryption.Scheme, string) {
		wanted := encryption.Scheme{Resources: []string{"secrets"}, Provider: encryption.Provider{Kind: encryption.Secretbox}}
		s, err := wanted.WithKey(encryption.Scheme{}, true, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		return s, "secretbox:v1:" + s.Provider.Name
	}
	right, name := scheme()
	wrong, _ := scheme()
	c := restoring(t, v1alpha1.Restore{
		EncryptionKeysSecretRef:    &corev1.LocalObjectReference{Name: "copy"},
		ServiceAccountKeySecretRef: &corev1.LocalObjectReference{Name: "key"},
	})
	c.must(c.client.Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "key"}, Data: map[string][]byte{
			desired.ServiceAccountPublicKey: key.Certificate, desired.ServiceAccountPrivateKey: key.Key,
		},
	}))
	c.expectBlocked(v1alpha1.ReasonRestoring)
	result, err := json.Marshal(format.Result{Verification: format.VerifiedBySignature, Manifest: format.Manifest{
		Namespace: "ns", Cluster: "former", ServiceAccountKey: format.Fingerprint(key.Certificate),
		Snapshot: format.Snapshot{Revision: 7, EncryptionKeys: []string{name}},
	}})
	c.must(err)
	c.endRestore(corev1.PodSucceeded, string(result))
	c.expectBlocked(v1alpha1.ReasonEncryptionKeysMissing, name, "missing in Secret copy, which does not exist")
	c.secretWith("copy", desired.EncryptionStateKey, "hunter2")
	c.expectBlocked(v1alpha1.ReasonEncryptionKeysMissing, "Secret copy has no encryption keys")
	c.secretWith("copy", desired.EncryptionStateKey, string(encryption.State{Current: wrong}.Data()))
	c.expectBlocked(v1alpha1.ReasonEncryptionKeysMissing, name, "missing in Secret copy;")
	c.secretWith("copy", desired.EncryptionStateKey, string(encryption.State{Current: right}.Data()))
	for range 5 {
		c.reconcile()
	}
	if pods := c.members(); !slices.Equal(pods, []string{"demo-0"}) {
		t.Errorf("members %v", pods)
	}
}

// TestRecoveryWithoutIdentities checks that a recovery from a backup also names the Secret without the identities.
func TestRecoveryWithoutIdentities(t *testing.T) {
	c := newCluster(t)
	c.execute([]string{"create"})
	object, state := c.get(), bootstrapped()
	state.Cluster = object
	state.Claims = append(state.Claims, corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "demo-3"}})
	recoverQuorum := func() {
		_, err := recovery.Recover(t.Context(), c.reconciler.objects(), state, c.clock.Now())
		c.must(err)
	}
	object.Status.Recovery = &v1alpha1.RecoveryStatus{
		Stage: v1alpha1.RecoveryRestoring, Member: "demo-3", Request: v1alpha1.Recovery{
			Encryption: &v1alpha1.BackupEncryption{SecretRef: corev1.LocalObjectReference{Name: "wrong"}},
			From: &v1alpha1.RestoreSource{Location: &v1alpha1.BackupLocation{
				Destination: v1alpha1.BackupDestination{Volume: &v1alpha1.VolumeDestination{ClaimName: "backups"}},
				Path:        "ns/former/b",
			}},
		},
	}
	recoverQuorum()
	if r := object.Status.Recovery; r.Reason != v1alpha1.ReasonBackupNotVerifiable ||
		!strings.Contains(r.Message, "set verificationKey") {
		t.Errorf("%+v", r)
	}
	object.Status.Recovery.Request.From.Location.VerificationKey = verificationKey
	recoverQuorum()
	if r := object.Status.Recovery; r.Reason != v1alpha1.ReasonObjectMissing ||
		r.Message != "Secret wrong does not exist" {
		t.Errorf("%+v", r)
	}
	pod := &corev1.Pod{}
	if err := c.client.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "demo-recovery"}, pod); err == nil {
		t.Error("the pod was created")
	}
	identity, err := age.GenerateX25519Identity()
	c.must(err)
	c.secretWith("wrong", desired.IdentitiesKey, identity.String())
	recoverQuorum()
	c.must(c.client.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "demo-recovery"}, pod))
	if r := object.Status.Recovery; r.Reason != "" || r.Message != "" {
		t.Errorf("%+v", r)
	}
}

// restoredResult returns the termination message of a pod that has restored a backup whose keys are missing.
func (c *cluster) restoredResult(location string) string {
	c.t.Helper()
	result, err := json.Marshal(format.Result{
		Location: location, Verification: format.VerifiedBySignature, Manifest: format.Manifest{
			Namespace: "ns", Cluster: "former", ServiceAccountKey: "0123", Snapshot: format.Snapshot{Revision: 7},
		},
	})
	c.must(err)
	return string(result)
}

// TestRestoreOfAnotherBackup checks that the cluster does not start with a backup that spec.restore no longer names,
// for example because the user has selected another backup after keys of the first one were missing.
func TestRestoreOfAnotherBackup(t *testing.T) {
	c := restoring(t, v1alpha1.Restore{})
	c.expectBlocked(v1alpha1.ReasonRestoring)
	former := c.restorePod()
	c.endRestore(corev1.PodSucceeded, c.restoredResult("file:///backups/ns/former/b"))
	c.expectBlocked(v1alpha1.ReasonServiceAccountKeyMissing)
	object := c.get()
	object.Spec.Restore.From.Location.Path = "ns/former/other"
	object.Spec.Restore.ServiceAccountKeyPolicy = v1alpha1.ReplaceServiceAccountKey
	c.must(c.client.Update(t.Context(), object))
	c.expectBlocked(v1alpha1.ReasonRestoring)
	pod := c.restorePod()
	if !slices.Contains(pod.Spec.Containers[0].Args, "--path=ns/former/other") {
		t.Errorf("the pod restores %q", pod.Spec.Containers[0].Args)
	}
	// The command in the pod resumes a restore with the same UID.
	if desired.JobUID(pod) == desired.JobUID(former) {
		t.Errorf("both restores have the UID %s", desired.JobUID(pod))
	}
	c.endRestore(corev1.PodSucceeded, c.restoredResult("file:///backups/ns/former/other"))
	for range 5 {
		c.reconcile()
	}
	if got := c.get().Status.Restore; !got.Completed || got.Location != "file:///backups/ns/former/other" {
		t.Errorf("%+v", got)
	}
}

func (c *cluster) restorePod() *corev1.Pod {
	c.t.Helper()
	pod := &corev1.Pod{}
	c.must(c.client.Get(c.t.Context(), client.ObjectKey{Namespace: "ns", Name: "demo-restore"}, pod))
	return pod
}

// TestRestoreIsRemoved checks that after spec.restore was removed, no member starts without the keys of the backup on a
// volume into which the backup is being restored.
func TestRestoreIsRemoved(t *testing.T) {
	c := restoring(t, v1alpha1.Restore{})
	c.expectBlocked(v1alpha1.ReasonRestoring)
	object := c.get()
	object.Spec.Restore = nil
	c.must(c.client.Update(t.Context(), object))
	for range 5 {
		c.reconcile()
	}
	if pods := c.members(); len(pods) > 0 {
		t.Errorf("members started: %v", pods)
	}
	got := meta.FindStatusCondition(c.get().Status.Conditions, v1alpha1.Degraded)
	if got.Reason != v1alpha1.ReasonInvalidSpec || !strings.Contains(got.Message, "spec.restore") {
		t.Errorf("%+v", got)
	}
}

// recovering returns a bootstrapped cluster in the stage Stopping of its second recovery. The pod of the first
// recovery, which the second one has replaced, still exists.
func recovering(t *testing.T) *cluster {
	t.Helper()
	c := newCluster(t)
	c.execute([]string{"create", "replicas=1"})
	c.execute([]string{"settle"})
	c.execute([]string{"bootstrapped", "demo-0"})
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "demo-0"}}
	c.must(c.client.Delete(t.Context(), pod))
	object := c.get()
	object.Spec.Recovery = &v1alpha1.Recovery{RequestID: "1", Member: "demo-0"}
	c.must(c.client.Update(t.Context(), object))
	object.Status.Recovery = &v1alpha1.RecoveryStatus{
		Request: *object.Spec.Recovery, Stage: v1alpha1.RecoveryRestoring, Member: "demo-0",
	}
	c.must(c.reconciler.objects().Create(t.Context(), object, desired.RecoveryPod(object, "quorate:1")))
	object.Spec.Recovery.RequestID = "2"
	c.must(c.client.Update(t.Context(), object))
	object.Status.Recovery = &v1alpha1.RecoveryStatus{
		Request: *object.Spec.Recovery, Stage: v1alpha1.RecoveryStopping, Member: "demo-0",
	}
	c.must(c.client.Status().Update(t.Context(), object))
	return c
}

// TestRecoveryWhoseFormerPodIsUnknown checks that a recovery prepares no data before the operator has read whether the
// pod of the former recovery still uses the volume.
func TestRecoveryWhoseFormerPodIsUnknown(t *testing.T) {
	c := recovering(t)
	unavailable := interceptor.NewClient(c.client.(client.WithWatch), interceptor.Funcs{Get: func(
		ctx context.Context, inner client.WithWatch, key client.ObjectKey, object client.Object, options ...client.GetOption,
	) error {
		if key.Name == "demo-recovery" {
			return apierrors.NewServiceUnavailable("etcd")
		}
		return inner.Get(ctx, key, object, options...)
	}})
	c.reconciler.Client = unavailable
	c.reconcile()
	if got := c.get().Status.Recovery; got.Stage != v1alpha1.RecoveryStopping {
		t.Errorf("%+v", got)
	}
	c.reconciler.Client = c.client
	for range 3 {
		c.reconcile()
	}
	pod := &corev1.Pod{}
	c.must(c.client.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "demo-recovery"}, pod))
	if uid := desired.JobUID(pod); uid != "demo/2" {
		t.Errorf("the pod has the UID %s; stage %s", uid, c.get().Status.Recovery.Stage)
	}
}

// TestRecoveryIgnoresTheFormerPod checks that a recovery ignores the result of a pod that was created for another
// request.
func TestRecoveryIgnoresTheFormerPod(t *testing.T) {
	c := recovering(t)
	pod := &corev1.Pod{}
	c.must(c.client.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "demo-recovery"}, pod))
	pod.Status.Phase = corev1.PodSucceeded
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: desired.ContainerName, State: corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{Message: c.restoredResult("/var/lib/quorate/etcd")},
	}}}
	c.must(c.client.Status().Update(t.Context(), pod))
	object := c.get()
	object.Status.Recovery.Stage = v1alpha1.RecoveryRestoring
	object.Status.Membership = &v1alpha1.Membership{InitialMembers: []string{"demo-0"}, NextOrdinal: 1}
	c.must(c.client.Status().Update(t.Context(), object))
	for range 3 {
		c.reconcile()
	}
	if got := c.get().Status.Recovery; got.Stage != v1alpha1.RecoveryRestoring {
		t.Errorf("%+v", got)
	}
	c.must(c.client.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "demo-recovery"}, pod))
	if uid := desired.JobUID(pod); uid != "demo/2" {
		t.Errorf("the pod has the UID %s", uid)
	}
}

// TestRejectedRestorePodIsRetriedLater checks that a pod that the kubelet has rejected, which has no container
// statuses, is replaced only after preparation.RetryInterval.
func TestRejectedRestorePodIsRetriedLater(t *testing.T) {
	c := restoring(t, v1alpha1.Restore{})
	c.expectBlocked(v1alpha1.ReasonRestoring)
	pod := c.restorePod()
	pod.CreationTimestamp = metav1.NewTime(c.clock.Now())
	c.must(c.client.Update(t.Context(), pod))
	pod.Status.Phase, pod.Status.Reason, pod.Status.Message =
		corev1.PodFailed, "OutOfcpu", "Node didn't have enough resource: cpu"
	c.must(c.client.Status().Update(t.Context(), pod))
	c.clock.Step(preparation.RetryInterval / 2)
	c.expectBlocked(v1alpha1.ReasonRestoreFailed, "didn't have enough resource")
	if pod := c.restorePod(); pod.Status.Phase != corev1.PodFailed {
		t.Errorf("the pod was replaced: %+v", pod.Status)
	}
	c.clock.Step(preparation.RetryInterval)
	for range 3 {
		c.reconcile()
	}
	if pod := c.restorePod(); pod.Status.Phase == corev1.PodFailed {
		t.Errorf("the pod was not replaced: %+v", pod.Status)
	}
}

// TestUnverifiedRestoreIsReported checks that a cluster does not start with a backup that was not verified unless the
// spec skips the verification, and that events, condition and status then say so.
func TestUnverifiedRestoreIsReported(t *testing.T) {
	result := func(v format.Verification) string {
		text, err := json.Marshal(format.Result{
			Location: "file:///backups/ns/former/b", Verification: v, Manifest: format.Manifest{
				Namespace: "ns", Cluster: "former", ServiceAccountKey: "0123", Snapshot: format.Snapshot{Revision: 7},
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	for _, v := range []format.Verification{"", format.Unverified} {
		c := restoring(t, v1alpha1.Restore{ServiceAccountKeyPolicy: v1alpha1.ReplaceServiceAccountKey})
		c.expectBlocked(v1alpha1.ReasonRestoring)
		c.endRestore(corev1.PodSucceeded, result(v))
		c.expectBlocked(v1alpha1.ReasonRestoreFailed, "verif", "delete the cluster and create it again")
	}
	c := restoring(t, v1alpha1.Restore{
		From:                    v1alpha1.RestoreSource{Verification: v1alpha1.SkipVerification},
		ServiceAccountKeyPolicy: v1alpha1.ReplaceServiceAccountKey,
	})
	c.expectBlocked(v1alpha1.ReasonRestoring)
	c.endRestore(corev1.PodFailed, "Error: unknown flag: --unverified")
	c.expectBlocked(v1alpha1.ReasonRestoreFailed,
		"is of an earlier release, which does not verify backups: set spec.image")
	c.clock.Step(time.Minute)
	c.reconcile()
	c.reconcile()
	c.endRestore(corev1.PodSucceeded, result(format.Unverified))
	for range 5 {
		c.reconcile()
	}
	restored := meta.FindStatusCondition(c.get().Status.Conditions, v1alpha1.Restored)
	if s := c.get().Status.Restore; !s.Completed || s.Verification != "None" ||
		!strings.Contains(restored.Message, "(not verified)") {
		t.Errorf("%+v, %s", s, restored.Message)
	}
	if events := strings.Join(c.results, "\n"); !strings.Contains(events, v1alpha1.ReasonBackupNotVerified) {
		t.Errorf("events: %s", events)
	}
}
