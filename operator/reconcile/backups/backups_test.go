package backups

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"filippo.io/age"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"quorate.dev/apiserver/backup/format"
	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/backup"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/membership"
	"quorate.dev/operator/reconcile/owned/ownedtest"
)

// environment is a simulated hosting cluster with the ApiServerCluster demo, whose etcd has a quorum.
type environment struct {
	t      *testing.T
	client client.Client
	clock  *clocktesting.FakeClock
	events []string
}

func newEnvironment(t *testing.T) *environment {
	t.Helper()
	e := &environment{t: t, clock: clocktesting.NewFakeClock(ownedtest.Now())}
	e.client = fake.NewClientBuilder().WithScheme(ownedtest.NewScheme(t)).
		WithTypeConverters(managedfields.NewDeducedTypeConverter()).WithStatusSubresource(&v1alpha1.ApiServerBackup{},
		&v1alpha1.ApiServerBackupSchedule{}, &corev1.Pod{}).WithObjects(hosted(t)...).
		WithInterceptorFuncs(interceptor.Funcs{Create: e.createAt}).Build()
	return e
}

// hosted returns the ApiServerCluster demo, whose etcd has a quorum, with its Secrets, and the destination and the
// recipients of its backups.
func hosted(t *testing.T) []client.Object {
	t.Helper()
	pair, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	cluster := &v1alpha1.ApiServerCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "demo"}}
	cluster.Status = v1alpha1.ApiServerClusterStatus{
		Image: "quorate:1", Membership: &v1alpha1.Membership{Bootstrapped: true},
		Members:    []v1alpha1.MemberStatus{{Name: "demo-0", Role: "leader"}, {Name: "demo-1", Role: "learner"}},
		Conditions: []metav1.Condition{{Type: v1alpha1.EtcdQuorum, Status: metav1.ConditionTrue}},
	}
	secret := func(name string, data map[string]string) *corev1.Secret {
		s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Data: map[string][]byte{}}
		for key, value := range data {
			s.Data[key] = []byte(value)
		}
		return s
	}
	return []client.Object{
		cluster, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "backups"}},
		secret("demo-service-account", map[string]string{
			desired.ServiceAccountPublicKey: "public", desired.ServiceAccountPrivateKey: "private",
		}),
		secret("demo-etcd-client", map[string]string{corev1.TLSCertKey: "certificate", corev1.TLSPrivateKeyKey: "key"}),
		secret("demo-etcd-client-ca", map[string]string{corev1.TLSCertKey: "authority"}),
		secret("keys", map[string]string{desired.RecipientsKey: pair.Recipient().String()}),
	}
}

// createAt creates an object with a creation time, as an API server does.
func (e *environment) createAt(
	ctx context.Context, c client.WithWatch, object client.Object, options ...client.CreateOption,
) error {
	object.SetCreationTimestamp(metav1.NewTime(e.clock.Now()))
	return c.Create(ctx, object, options...)
}

// Eventf implements events.EventRecorder.
func (e *environment) Eventf(_, _ runtime.Object, _, reason, _, note string, args ...any) {
	e.events = append(e.events, reason+": "+fmt.Sprintf(note, args...))
}

func (e *environment) must(err error) {
	e.t.Helper()
	if err != nil {
		e.t.Fatal(err)
	}
}

func (e *environment) create(spec v1alpha1.ApiServerBackupSpec) {
	e.t.Helper()
	e.must(e.client.Create(e.t.Context(), &v1alpha1.ApiServerBackup{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "b", UID: "uid",
			CreationTimestamp: metav1.NewTime(e.clock.Now())}, Spec: spec,
	}))
}

// reconcile reconciles the backup several times, because a step may request the next one.
func (e *environment) reconcile() *v1alpha1.ApiServerBackup {
	e.t.Helper()
	r := &Reconciler{Client: e.client, Reader: e.client, Recorder: e, Clock: e.clock, Retries: NewRetries()}
	key := client.ObjectKey{Namespace: "ns", Name: "b"}
	for range 5 {
		_, err := r.Reconcile(e.t.Context(), ctrl.Request{NamespacedName: key})
		e.must(err)
	}
	b := &v1alpha1.ApiServerBackup{}
	err := e.client.Get(e.t.Context(), key, b)
	if apierrors.IsNotFound(err) {
		return nil
	}
	e.must(err)
	return b
}

func (e *environment) pod(name string) *corev1.Pod {
	e.t.Helper()
	pod := &corev1.Pod{}
	if err := e.client.Get(e.t.Context(), client.ObjectKey{Namespace: "ns", Name: name}, pod); err != nil {
		e.t.Fatalf("%v; events %q", err, e.events)
	}
	return pod
}

// end terminates a pod with a message.
func (e *environment) end(name string, phase corev1.PodPhase, message string) {
	e.t.Helper()
	pod := e.pod(name)
	pod.Status.Phase = phase
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: desired.ContainerName, State: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{Message: message},
		},
	}}
	e.must(e.client.Status().Update(e.t.Context(), pod))
}

var volume = v1alpha1.BackupDestination{Volume: &v1alpha1.VolumeDestination{ClaimName: "backups", Path: "etcd"}}

func TestBackupRetriesAndCompletes(t *testing.T) {
	e := newEnvironment(t)
	e.create(v1alpha1.ApiServerBackupSpec{
		ClusterName: "demo", Destination: volume, DeletionPolicy: v1alpha1.BackupDelete,
		Encryption: &v1alpha1.BackupEncryption{SecretRef: corev1.LocalObjectReference{Name: "keys"}},
	})
	if b := e.reconcile(); b.Status.Phase != v1alpha1.BackupRunning || b.Status.Path != "etcd/ns/demo/b" {
		t.Fatalf("%+v", b.Status)
	}
	args := e.pod("b-try1").Spec.Containers[0].Args
	for _, want := range []string{
		"--uid=uid", "--path=etcd/ns/demo/b", "--endpoints=https://demo-0.demo-members.ns.svc:2379",
	} {
		if !slices.Contains(args, want) {
			t.Errorf("arguments %q lack %s", args, want)
		}
	}
	if text := fmt.Sprint(e.pod("b-try1").Spec); strings.Contains(text, "demo-1.") || strings.Contains(text, "private") {
		t.Errorf("the pod has a learner or a private key: %s", text)
	}
	e.end("b-try1", corev1.PodFailed, "no quorum")
	e.reconcile()
	text, err := json.Marshal(format.Result{Location: "file:///backups", Manifest: format.Manifest{
		UID: "uid", Created: e.clock.Now(), StoredBytes: 7, StoredSHA256: "abc", Snapshot: format.Snapshot{Revision: 5},
	}, ManifestSHA256: "def", VerificationKey: "ed25519:key"})
	e.must(err)
	e.clock.Step(3 * time.Second)
	e.end("b-try2", corev1.PodSucceeded, string(text))
	b := e.reconcile()
	if b.Status.Phase != v1alpha1.BackupCompleted || b.Status.Revision != 5 ||
		b.Status.SHA256 != "abc" || b.Status.Attempts != 2 || b.Status.ManifestSHA256 != "def" ||
		b.Status.VerificationKey != "ed25519:key" {
		t.Errorf("%+v", b.Status)
	}
	registry := prometheus.NewRegistry()
	e.must(registry.Register(Collector{e.client, e.clock}))
	e.must(testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP quorate_backup_last_duration_seconds Duration of the newest completed backup of a cluster.
# TYPE quorate_backup_last_duration_seconds gauge
quorate_backup_last_duration_seconds{cluster="demo",namespace="ns"} 3
# HELP quorate_backup_last_size_bytes Size of the newest completed backup of a cluster.
# TYPE quorate_backup_last_size_bytes gauge
quorate_backup_last_size_bytes{cluster="demo",namespace="ns"} 7
`), "quorate_backup_last_size_bytes", "quorate_backup_last_duration_seconds"))
	e.must(e.client.Delete(t.Context(), b))
	if e.reconcile() == nil {
		t.Fatal("the backup is deleted before its data")
	}
	e.end("b-delete", corev1.PodFailed, "no permission")
	e.clock.Step(removeRetryInterval / 2)
	e.reconcile()
	if pod := e.pod("b-delete"); pod.Status.Phase != corev1.PodFailed {
		t.Error("the deletion was retried at once")
	}
	e.clock.Step(removeRetryInterval)
	e.reconcile() // the deletion is retried
	e.end("b-delete", corev1.PodSucceeded, "")
	if b := e.reconcile(); b != nil {
		t.Errorf("the backup still exists: %+v", b)
	}
	if want := []string{
		"SuccessfulCreate: Created Pod b-try1", "BackupRetried: Attempt 1 failed: no quorum",
		"SuccessfulCreate: Created Pod b-try2", "BackupCompleted: Stored 7 bytes at revision 5 and verified them",
		"DataDeletionFailed: Failed to delete the data, retrying; set deletionPolicy to Retain to keep it: no permission",
	}; !slices.Equal(e.events, want) {
		t.Errorf("events %q, want %q", e.events, want)
	}
}

// TestBackupWithoutResultFails checks that a backup fails if its pod succeeds without a result, or with the result of
// another backup.
func TestBackupWithoutResultFails(t *testing.T) {
	for message, want := range map[string]string{
		"": "without a termination message", "{": "is not a result", `{"manifest":{"uid":"other"}}`: "a different backup",
	} {
		e := newEnvironment(t)
		e.create(v1alpha1.ApiServerBackupSpec{ClusterName: "demo", Destination: volume})
		e.reconcile()
		e.end("b-try1", corev1.PodSucceeded, message)
		b := e.reconcile()
		if c := b.Status.Conditions[0]; b.Status.Phase != v1alpha1.BackupFailed || !strings.Contains(c.Message, want) {
			t.Errorf("%q: %s %+v, want %q", message, b.Status.Phase, c, want)
		}
	}
}

func TestBackupOfMissingClusterTimesOut(t *testing.T) {
	e := newEnvironment(t)
	e.create(v1alpha1.ApiServerBackupSpec{ClusterName: "none", Destination: volume, TimeoutSeconds: ptr.To[int32](60)})
	if b := e.reconcile(); b.Status.Phase != v1alpha1.BackupPending ||
		!strings.Contains(b.Status.Conditions[0].Message, "does not exist") {
		t.Errorf("%+v", b.Status)
	}
	e.clock.Step(61 * time.Second)
	if b := e.reconcile(); b.Status.Phase != v1alpha1.BackupFailed {
		t.Errorf("%+v", b.Status)
	}
	e.must(testutil.CollectAndCompare(Collector{e.client, e.clock}, strings.NewReader(fmt.Sprintf(`
# HELP quorate_backup_last_failure_timestamp_seconds Time at which the newest failed backup of a cluster failed, in seconds since 1970.
# TYPE quorate_backup_last_failure_timestamp_seconds gauge
quorate_backup_last_failure_timestamp_seconds{cluster="none",namespace="ns"} %d
`, e.clock.Now().Unix())), "quorate_backup_last_failure_timestamp_seconds"))
}

// TestBackupThatCannotStart checks that the status and an event name the missing object, then the reason why the pod
// does not start, and that the backup fails at its deadline.
func TestBackupThatCannotStart(t *testing.T) {
	e := newEnvironment(t)
	s3 := v1alpha1.BackupDestination{
		S3: &v1alpha1.S3Destination{CredentialsSecretRef: corev1.LocalObjectReference{Name: "s3"}},
	}
	e.create(v1alpha1.ApiServerBackupSpec{ClusterName: "demo", Destination: s3, StartTimeoutSeconds: ptr.To[int32](60)})
	expect := func(reason, message string) {
		t.Helper()
		if c := e.reconcile().Status.Conditions[0]; c.Reason != reason || c.Message != message {
			t.Errorf("%s: %s, want %s: %s", c.Reason, c.Message, reason, message)
		}
	}
	expect("ObjectMissing", "Secret s3 does not exist")
	credentials := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s3"}, Data: map[string][]byte{"accessKeyID": []byte("id")},
	}
	e.must(e.client.Create(t.Context(), credentials))
	expect("ObjectInvalid", "Secret s3 has no key secretAccessKey")
	credentials.Data["secretAccessKey"] = []byte("key")
	e.must(e.client.Update(t.Context(), credentials))
	expect("Running", "Attempt 1 of 3")
	pod := e.pod("b-try1")
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{
		Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "Back-off pulling image quorate:1"},
	}}}
	e.must(e.client.Status().Update(t.Context(), pod))
	expect("PodNotStarting", "b-try1: ImagePullBackOff Back-off pulling image quorate:1")
	e.clock.Step(61 * time.Second)
	expect("BackupFailed", "the pod did not start within 1m0s: b-try1: ImagePullBackOff Back-off pulling image quorate:1")
	if want := []string{
		"ObjectMissing: Secret s3 does not exist", "ObjectInvalid: Secret s3 has no key secretAccessKey",
		"SuccessfulCreate: Created Pod b-try1", "PodNotStarting: b-try1: ImagePullBackOff Back-off pulling image quorate:1",
	}; !slices.Equal(e.events[:4], want) || len(e.events) != 5 {
		t.Errorf("events %q, want %q", e.events, want)
	}
}

// TestBackupWithoutSecretsOfTheClusterFails checks that the condition names the Secret, and that the backup fails at
// its start deadline.
func TestBackupWithoutSecretsOfTheClusterFails(t *testing.T) {
	for name, key := range map[string]string{
		"demo-service-account": desired.ServiceAccountPrivateKey, "demo-etcd-client": corev1.TLSPrivateKeyKey,
		"demo-etcd-client-ca": corev1.TLSCertKey,
	} {
		e := newEnvironment(t)
		secret := &corev1.Secret{}
		e.must(e.client.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: name}, secret))
		delete(secret.Data, key)
		e.must(e.client.Update(t.Context(), secret))
		e.create(v1alpha1.ApiServerBackupSpec{ClusterName: "demo", Destination: volume})
		want := fmt.Sprintf("Secret %s has no key %s", name, key)
		if c := e.reconcile().Status.Conditions[0]; c.Reason != "ObjectInvalid" || c.Message != want {
			t.Errorf("%s: %s, want %s", c.Reason, c.Message, want)
		}
		e.must(e.client.Delete(t.Context(), secret))
		want = fmt.Sprintf("Secret %s does not exist", name)
		if c := e.reconcile().Status.Conditions[0]; c.Reason != "ObjectMissing" || c.Message != want {
			t.Errorf("%s: %s, want %s", c.Reason, c.Message, want)
		}
		e.clock.Step(6 * time.Minute)
		if b := e.reconcile(); b.Status.Phase != v1alpha1.BackupFailed ||
			!strings.Contains(b.Status.Conditions[0].Message, want) {
			t.Errorf("%+v", b.Status)
		}
	}
}

// TestBackupWithWrongRecipientsFails checks that the backup fails early with a message, because no pod can encrypt for
// these recipients.
func TestBackupWithWrongRecipientsFails(t *testing.T) {
	e := newEnvironment(t)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "wrong"}, Data: map[string][]byte{
		desired.RecipientsKey: []byte("AGE-SECRET-KEY-1"),
	}}
	e.must(e.client.Create(t.Context(), secret))
	encryption := &v1alpha1.BackupEncryption{SecretRef: corev1.LocalObjectReference{Name: "wrong"}}
	e.create(v1alpha1.ApiServerBackupSpec{ClusterName: "demo", Destination: volume, Encryption: encryption})
	c := e.reconcile().Status.Conditions[0]
	if c.Reason != "ObjectInvalid" || !strings.Contains(c.Message, "Secret wrong is invalid: recipients") ||
		strings.Contains(c.Message, "AGE-SECRET-KEY") {
		t.Errorf("%s: %s", c.Reason, c.Message)
	}
	e.clock.Step(6 * time.Minute)
	if b := e.reconcile(); b.Status.Phase != v1alpha1.BackupFailed || b.Status.Attempts != 0 ||
		!strings.Contains(b.Status.Conditions[0].Message, "Secret wrong is invalid") {
		t.Errorf("%+v", b.Status)
	}
}

// TestBackupNamedLikeItsCluster checks that the pods of a backup do not have the names of replicas. Otherwise the
// backup would wait for the replica's pod to be deleted, could not be deleted itself, and could take the name of a
// member's pod.
func TestBackupNamedLikeItsCluster(t *testing.T) {
	e := newEnvironment(t)
	for _, replica := range []string{"b-0", "b-1"} { // replicas of the cluster b
		e.must(e.client.Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: replica}}))
	}
	e.create(v1alpha1.ApiServerBackupSpec{ClusterName: "demo", Destination: volume})
	b := e.reconcile()
	if b.Status.Phase != v1alpha1.BackupRunning {
		t.Errorf("%+v", b.Status)
	}
	for attempt := range int32(backup.MaxAttempts + 1) {
		b.Status.Attempts = attempt
		if name := desired.BackupPodName(b); membership.Ordinal(b.Name, name) >= 0 {
			t.Errorf("%s is the name of a replica", name)
		}
	}
	e.must(e.client.Delete(t.Context(), b))
	if b := e.reconcile(); b != nil {
		t.Errorf("the backup still exists: %+v", b)
	}
}
