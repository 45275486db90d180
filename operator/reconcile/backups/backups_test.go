package backups

import (
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
	"k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"quorate.dev/apiserver/backup/format"
	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
)

// environment is a simulated hosting cluster with the ApiServerCluster demo, whose etcd has a quorum.
type environment struct {
	t        *testing.T
	client   client.Client
	clock    *clocktesting.FakeClock
	identity string
	events   []string
}

func newEnvironment(t *testing.T) *environment {
	t.Helper()
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(s); err != nil {
			t.Fatal(err)
		}
	}
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
	e := &environment{
		t: t, clock: clocktesting.NewFakeClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)), identity: pair.String(),
	}
	e.client = fake.NewClientBuilder().WithScheme(s).WithStatusSubresource(&v1alpha1.ApiServerBackup{},
		&v1alpha1.ApiServerBackupSchedule{}, &corev1.Pod{}).WithObjects(cluster,
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "demo-service-account"}, Data: map[string][]byte{
			desired.ServiceAccountPublicKey: []byte("public"), desired.ServiceAccountPrivateKey: []byte("private"),
		}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "keys"}, Data: map[string][]byte{
			desired.RecipientsKey: []byte(pair.Recipient().String()),
		}}).Build()
	return e
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
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "b", UID: "uid", CreationTimestamp: metav1.NewTime(e.clock.Now())}, Spec: spec,
	}))
}

// reconcile reconciles a few times, as often as a step can requeue.
func (e *environment) reconcile() *v1alpha1.ApiServerBackup {
	e.t.Helper()
	r := &Reconciler{Client: e.client, Reader: e.client, Recorder: e, Clock: e.clock}
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

// end terminates a pod.
func (e *environment) end(name string, phase corev1.PodPhase, message string) {
	e.t.Helper()
	pod := e.pod(name)
	pod.Status.Phase = phase
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: desired.ContainerName, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: message}},
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
	args := e.pod("b-1").Spec.Containers[0].Args
	for _, want := range []string{"--uid=uid", "--path=etcd/ns/demo/b", "--endpoints=https://demo-0.demo-members.ns.svc:2379"} {
		if !slices.Contains(args, want) {
			t.Errorf("arguments %q lack %s", args, want)
		}
	}
	if text := fmt.Sprint(e.pod("b-1").Spec); strings.Contains(text, "demo-1.") || strings.Contains(text, "private") {
		t.Errorf("the pod has a learner or a private key: %s", text)
	}
	e.end("b-1", corev1.PodFailed, "no quorum")
	e.reconcile()
	text, err := json.Marshal(format.Result{Location: "file:///backups", Manifest: format.Manifest{
		UID: "uid", Created: e.clock.Now(), StoredBytes: 7, StoredSHA256: "abc", Snapshot: format.Snapshot{Revision: 5},
	}})
	e.must(err)
	e.clock.Step(3 * time.Second)
	e.end("b-2", corev1.PodSucceeded, string(text))
	b := e.reconcile()
	if b.Status.Phase != v1alpha1.BackupCompleted || b.Status.Revision != 5 || b.Status.SHA256 != "abc" || b.Status.Attempts != 2 {
		t.Errorf("%+v", b.Status)
	}
	registry := prometheus.NewRegistry()
	e.must(registry.Register(Collector{e.client}))
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
	e.reconcile() // repeats
	e.end("b-delete", corev1.PodSucceeded, "")
	if b := e.reconcile(); b != nil {
		t.Errorf("the backup still exists: %+v", b)
	}
	if want := []string{
		"SuccessfulCreate: Created Pod b-1", "BackupRetried: Attempt 1 failed: no quorum", "SuccessfulCreate: Created Pod b-2",
		"BackupCompleted: Stored 7 bytes at revision 5 and verified them",
		"DataDeletionFailed: Retrying to delete the data; set deletionPolicy to Retain to keep it: no permission",
	}; !slices.Equal(e.events, want) {
		t.Errorf("events %q, want %q", e.events, want)
	}
}

// A pod that succeeds without a result, or with the result of another backup, is a failure.
func TestBackupWithoutResultFails(t *testing.T) {
	for message, want := range map[string]string{
		"": "without a termination message", "{": "is not a result", `{"manifest":{"uid":"other"}}`: "another backup",
	} {
		e := newEnvironment(t)
		e.create(v1alpha1.ApiServerBackupSpec{ClusterName: "demo", Destination: volume})
		e.reconcile()
		e.end("b-1", corev1.PodSucceeded, message)
		b := e.reconcile()
		if c := b.Status.Conditions[0]; b.Status.Phase != v1alpha1.BackupFailed || !strings.Contains(c.Message, want) {
			t.Errorf("%q: %s %+v, want %q", message, b.Status.Phase, c, want)
		}
	}
}

func TestBackupOfMissingClusterTimesOut(t *testing.T) {
	e := newEnvironment(t)
	e.create(v1alpha1.ApiServerBackupSpec{ClusterName: "none", Destination: volume, TimeoutSeconds: ptr.To[int32](60)})
	if b := e.reconcile(); b.Status.Phase != v1alpha1.BackupPending || !strings.Contains(b.Status.Conditions[0].Message, "does not exist") {
		t.Errorf("%+v", b.Status)
	}
	e.clock.Step(61 * time.Second)
	if b := e.reconcile(); b.Status.Phase != v1alpha1.BackupFailed {
		t.Errorf("%+v", b.Status)
	}
}

func TestSchedule(t *testing.T) {
	e := newEnvironment(t)
	r := &ScheduleReconciler{Client: e.client, Reader: e.client, Recorder: e, Clock: e.clock}
	key := client.ObjectKey{Namespace: "ns", Name: "hourly"}
	e.must(e.client.Create(t.Context(), &v1alpha1.ApiServerBackupSchedule{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "hourly", CreationTimestamp: metav1.NewTime(e.clock.Now())},
		Spec: v1alpha1.ApiServerBackupScheduleSpec{
			Schedule: "0 * * * *", Retention: v1alpha1.BackupRetention{Count: ptr.To[int32](2)},
			Template: v1alpha1.BackupTemplate{ClusterName: "demo", Destination: volume},
		},
	}))
	step := func() []v1alpha1.ApiServerBackup {
		t.Helper()
		for range 2 { // twice: a repetition creates no second backup
			_, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: key})
			e.must(err)
		}
		var list v1alpha1.ApiServerBackupList
		e.must(e.client.List(t.Context(), &list))
		return list.Items
	}
	if got := step(); len(got) != 0 {
		t.Fatalf("%d backups before the first scheduled time", len(got))
	}
	for n := range 4 {
		e.clock.Step(time.Hour)
		got := step()
		if want := min(n+1, 3); len(got) != want { // two completed ones and the new one
			t.Fatalf("%d backups after %d hours, want %d; events %q", len(got), n+1, want, e.events)
		}
		for i := range got {
			if !got[i].Finished() {
				got[i].Status.Phase, got[i].Status.CompletionTime = v1alpha1.BackupCompleted, &metav1.Time{Time: e.clock.Now()}
				e.must(e.client.Status().Update(t.Context(), &got[i]))
			}
		}
	}
	var s v1alpha1.ApiServerBackupSchedule
	step()
	e.must(e.client.Get(t.Context(), key, &s))
	if s.Status.NextScheduleTime.Hour() != 5 || s.Status.LastSuccessfulTime.Hour() != 4 || s.Status.Active != 0 {
		t.Errorf("%+v", s.Status)
	}
	s.Spec.TimeZone = "Nowhere"
	e.must(e.client.Update(t.Context(), &s))
	step()
	e.must(e.client.Get(t.Context(), key, &s))
	if c := s.Status.Conditions[0]; c.Status != metav1.ConditionFalse || c.Reason != "InvalidSpec" {
		t.Errorf("%+v", c)
	}
}
