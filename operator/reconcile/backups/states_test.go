package backups

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/reconcile/owned/ownedtest"
	"quorate.dev/operator/status"
)

// expect checks the reason and the message of a backup's condition after some reconciliations.
func (e *environment) expect(reason, message string) {
	e.t.Helper()
	c := meta.FindStatusCondition(e.reconcile().Status.Conditions, v1alpha1.BackupComplete)
	if c == nil || c.Reason != reason || c.Message != message {
		e.t.Errorf("condition %+v, want %s: %s", c, reason, message)
	}
}

// setQuorum reports whether the etcd of the cluster has a quorum.
func (e *environment) setQuorum(status metav1.ConditionStatus) {
	e.t.Helper()
	cluster := &v1alpha1.ApiServerCluster{}
	e.must(e.client.Get(e.t.Context(), client.ObjectKey{Namespace: "ns", Name: "demo"}, cluster))
	cluster.Status.Conditions = []metav1.Condition{{Type: v1alpha1.EtcdQuorum, Status: status}}
	e.must(e.client.Update(e.t.Context(), cluster))
}

// TestForeignPod checks that a pod of another owner with the name of a backup's pod is reported and stays, that the
// backup continues once the pod is deleted, and that it fails at its deadline otherwise.
func TestForeignPod(t *testing.T) {
	const message = "a pod named b-try1 exists and is not owned by this backup; delete it"
	foreign := func() *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "b-try1"}}
	}
	for _, removed := range []bool{true, false} {
		e := newEnvironment(t)
		e.must(e.client.Create(t.Context(), foreign()))
		e.create(v1alpha1.ApiServerBackupSpec{ClusterName: "demo", Destination: volume})
		e.expect("PodNotStarting", message)
		if want := []string{"PodNotStarting: " + message}; !slices.Equal(e.events, want) {
			t.Errorf("events %q, want %q", e.events, want)
		}
		if removed {
			e.must(e.client.Delete(t.Context(), foreign()))
			e.expect("Running", "Attempt 1 of 3")
			continue
		}
		e.clock.Step(301 * time.Second)
		e.expect("BackupFailed", "timed out after 5m0s: "+message)
		if metav1.GetControllerOf(e.pod("b-try1")) != nil {
			t.Error("the pod of the other owner has changed")
		}
	}
}

// TestForeignDeletePod checks that an event reports a pod of another owner with the name of the pod that deletes the
// data, and that the backup is kept until the pod is deleted or the data is to be retained.
func TestForeignDeletePod(t *testing.T) {
	h := ownedtest.NewHost(t, append(hosted(t), newBackup(started, deleted),
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "b-delete"}})...)
	request := ctrl.Request{NamespacedName: client.ObjectKey{Namespace: "ns", Name: "b"}}
	if _, err := reconcilerOf(h).Reconcile(t.Context(), request); !errors.Is(err, errForeign) {
		t.Errorf("got the error %v", err)
	}
	if got := strings.Join(h.Events(), "\n"); !strings.Contains(got, "Warning DataDeletionFailed: ") ||
		!strings.Contains(got, "a pod named b-delete exists and is not owned by this backup; delete it") {
		t.Errorf("events %s", got)
	}
	ownedtest.Change(h, "b", &v1alpha1.ApiServerBackup{}, func(b *v1alpha1.ApiServerBackup) {
		b.Spec.DeletionPolicy = v1alpha1.BackupRetain
	})
	_, err := reconcilerOf(h).Reconcile(t.Context(), request)
	h.Must(err)
	if h.Exists("b", &v1alpha1.ApiServerBackup{}) || !h.Exists("b-delete", &corev1.Pod{}) {
		t.Errorf("left %q", h.Names())
	}
}

// TestConditionSaysWhyBackupIsBlocked checks that the condition of a backup has the reason why the cluster cannot be
// backed up.
func TestConditionSaysWhyBackupIsBlocked(t *testing.T) {
	for _, test := range []struct {
		change func(*v1alpha1.ApiServerCluster)
		want   string
	}{
		{func(c *v1alpha1.ApiServerCluster) {
			c.Spec.Etcd.External = &v1alpha1.ExternalEtcd{Endpoints: []string{"https://etcd:2379"}}
		}, "the ApiServerCluster uses an external etcd, which the operator does not back up"},
		{
			func(c *v1alpha1.ApiServerCluster) { c.Status.Membership = nil },
			"the etcd of the ApiServerCluster has no quorum",
		},
	} {
		e := newEnvironment(t)
		cluster := &v1alpha1.ApiServerCluster{}
		e.must(e.client.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "demo"}, cluster))
		test.change(cluster)
		e.must(e.client.Update(t.Context(), cluster))
		e.create(v1alpha1.ApiServerBackupSpec{ClusterName: "demo", Destination: volume})
		e.expect("Waiting", test.want)
	}
}

// TestQuorumLostBetweenAttempts checks that the condition does not say that an attempt runs while the next one waits
// for the quorum.
func TestQuorumLostBetweenAttempts(t *testing.T) {
	e := newEnvironment(t)
	e.create(v1alpha1.ApiServerBackupSpec{ClusterName: "demo", Destination: volume})
	e.expect("Running", "Attempt 1 of 3")
	e.setQuorum(metav1.ConditionFalse)
	e.expect("Running", "Attempt 1 of 3")
	e.end("b-try1", corev1.PodFailed, "connection refused")
	e.expect("Waiting", "the etcd of the ApiServerCluster has no quorum")
	e.setQuorum(metav1.ConditionTrue)
	e.expect("Running", "Attempt 2 of 3; the previous one failed: connection refused")
}

// TestTerminatingPod checks that the result of a pod that is being deleted counts, and that after a failed one the next
// attempt waits until the pod is gone.
func TestTerminatingPod(t *testing.T) {
	for phase, want := range map[corev1.PodPhase]v1alpha1.BackupPhase{
		corev1.PodSucceeded: v1alpha1.BackupCompleted, corev1.PodFailed: v1alpha1.BackupRunning,
		corev1.PodRunning: v1alpha1.BackupRunning,
	} {
		b := newBackup(started)
		pod := podOf(b, "b-try1", phase, `{"manifest":{"uid":"uid"}}`)
		pod.DeletionTimestamp, pod.Finalizers = &metav1.Time{Time: ownedtest.Now()}, []string{"example.org/wait"}
		h := ownedtest.NewHost(t, append(hosted(t), b, pod)...)
		_, err := reconcilerOf(h).Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKeyFromObject(b)})
		h.Must(err)
		h.Read("b", b)
		if b.Status.Phase != want || b.Status.Attempts != 1 {
			t.Errorf("%s: %+v, want %s", phase, b.Status, want)
		}
	}
}

// TestPodWithoutReason checks that a pod that has not started for a minute is reported even if the kubelet gives no
// reason, or a reason that is usually temporary.
func TestPodWithoutReason(t *testing.T) {
	e := newEnvironment(t)
	e.create(v1alpha1.ApiServerBackupSpec{ClusterName: "demo", Destination: volume})
	e.expect("Running", "Attempt 1 of 3")
	e.clock.Step(59 * time.Second)
	e.expect("Running", "Attempt 1 of 3")
	e.clock.Step(time.Second)
	e.expect("PodNotStarting", "b-try1 has not started")
	pod := e.pod("b-try1")
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{
		Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"},
	}}}
	e.must(e.client.Status().Update(t.Context(), pod))
	e.expect("PodNotStarting", "b-try1 has not started: ContainerCreating")
	pod.Status.Phase = corev1.PodRunning
	e.must(e.client.Status().Update(t.Context(), pod))
	e.expect("Running", "Attempt 1 of 3")
}

// TestFailure checks which of the messages about a failed pod users see.
func TestFailure(t *testing.T) {
	failed := func(message, status, reason string) *corev1.Pod {
		pod := podOf(newBackup(), "b-try1", corev1.PodFailed, message)
		pod.Status.Message, pod.Status.Reason = status, reason
		return pod
	}
	for want, pod := range map[string]*corev1.Pod{
		"no quorum":               failed("no quorum", "The node was low on memory", "Evicted"),
		"The node is out of disk": failed("", "The node is out of disk", "Evicted"),
		"Evicted":                 failed("", "", "Evicted"),
		"the pod failed":          failed("", "", ""),
		"":                        podOf(newBackup(), "b-try1", corev1.PodRunning, "no quorum"),
	} {
		if got := Failure(pod); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if got := Failure(nil); got != "" {
		t.Errorf("without a pod: %q", got)
	}
}

// TestUnusableSecrets checks which Secrets of users are reported before a pod is created.
func TestUnusableSecrets(t *testing.T) {
	for name, test := range map[string]struct {
		key, value      string
		reason, message string
	}{
		"credentials": {"accessKeyID", "id", "", ""},
		"empty":       {"accessKeyID", "", v1alpha1.ReasonObjectInvalid, "Secret s has no key accessKeyID"},
		"no identity": {desired.IdentitiesKey, "age1notakey", v1alpha1.ReasonObjectInvalid, "Secret s is invalid: "},
		"missing":     {"", "", v1alpha1.ReasonObjectMissing, "Secret s does not exist"},
	} {
		h := ownedtest.NewHost(t)
		if test.key != "" {
			h.CreateAll(&corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"}, Data: map[string][]byte{test.key: []byte(test.value)},
			})
		}
		needed := []desired.SecretKeys{{Name: "s", Keys: []string{test.key}}}
		reason, message, err := Unusable(t.Context(), h.Reader, "ns", needed)
		if err != nil || reason != test.reason || !strings.HasPrefix(message, test.message) ||
			test.value != "" && strings.Contains(message, test.value) {
			t.Errorf("%s: %s: %s, %v", name, reason, message, err)
		}
	}
}

// TestConditions checks which schedules the condition of a cluster depends on.
func TestConditions(t *testing.T) {
	named := func(name, cluster string, changes ...func(*v1alpha1.ApiServerBackupSchedule)) client.Object {
		return newSchedule(append(changes, func(s *v1alpha1.ApiServerBackupSchedule) {
			s.Name, s.Spec.Template.ClusterName = name, cluster
		})...)
	}
	overdue := metav1.Condition{Type: v1alpha1.BackupReady, Status: metav1.ConditionFalse, Reason: "BackupOverdue"}
	h := ownedtest.NewHost(t, named("new", "demo"), named("others", "other"),
		named("overdue", "demo", func(s *v1alpha1.ApiServerBackupSchedule) {
			s.Status.Conditions = []metav1.Condition{overdue}
		}),
		named("terminating", "demo", func(s *v1alpha1.ApiServerBackupSchedule) {
			s.DeletionTimestamp, s.Finalizers = &metav1.Time{Time: due()}, []string{"example.org/wait"}
		}))
	got, err := Conditions(t.Context(), h.Client, ownedtest.NewCluster())
	h.Must(err)
	want := []status.Schedule{{Name: "new", Condition: metav1.Condition{
		Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonNotObserved, Message: "The schedule was not evaluated yet",
	}}, {Name: "overdue", Condition: overdue}}
	if !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	h.Refuse = func(string) error { return ownedtest.ErrUnavailable }
	if _, err := Conditions(t.Context(), h.Client, ownedtest.NewCluster()); !errors.Is(err, ownedtest.ErrUnavailable) {
		t.Errorf("without a list: %v", err)
	}
}

// TestCollector checks the metrics of backups in all phases, one of which has reported no time, and that a failed read
// is an error instead of missing series, which alerts would not notice.
func TestCollector(t *testing.T) {
	at := func(age time.Duration) *metav1.Time { return &metav1.Time{Time: due().Add(-age)} }
	completed := func(name string, snapshot *metav1.Time, size int64) client.Object {
		b := scheduled(name, v1alpha1.BackupCompleted, time.Hour)
		b.Status.StartTime, b.Status.SnapshotTime, b.Status.SizeBytes = at(2*time.Hour), snapshot, size
		return b
	}
	h := ownedtest.NewHost(t,
		completed("a", nil, 1), completed("b", at(3*time.Hour), 2), completed("c", at(4*time.Hour), 3),
		scheduled("d", v1alpha1.BackupFailed, 6*time.Hour), scheduled("e", v1alpha1.BackupFailed, 5*time.Hour),
		scheduled("f", "", 0), scheduled("g", v1alpha1.BackupRunning, 0), newSchedule())
	registry := prometheus.NewRegistry()
	h.Must(registry.Register(Collector{h.Client, clocktesting.NewFakeClock(due())}))
	h.Must(testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP quorate_backup_last_size_bytes Size of the newest completed backup of a cluster.
# TYPE quorate_backup_last_size_bytes gauge
quorate_backup_last_size_bytes{cluster="demo",namespace="ns"} 2
# HELP quorate_backup_last_failure_timestamp_seconds Time at which the newest failed backup of a cluster failed, in seconds since 1970.
# TYPE quorate_backup_last_failure_timestamp_seconds gauge
quorate_backup_last_failure_timestamp_seconds{cluster="demo",namespace="ns"} 1.7672076e+09
# HELP quorate_backups Number of ApiServerBackups of a cluster by phase.
# TYPE quorate_backups gauge
quorate_backups{cluster="demo",namespace="ns",phase="Completed"} 3
quorate_backups{cluster="demo",namespace="ns",phase="Failed"} 2
quorate_backups{cluster="demo",namespace="ns",phase="Pending"} 1
quorate_backups{cluster="demo",namespace="ns",phase="Running"} 1
`), "quorate_backup_last_size_bytes", "quorate_backup_last_failure_timestamp_seconds", "quorate_backups"))
	for _, failing := range []string{"list ApiServerBackupList", "list ApiServerBackupScheduleList"} {
		h.Refuse = func(request string) error {
			if request == failing {
				return ownedtest.ErrUnavailable
			}
			return nil
		}
		if _, err := registry.Gather(); err == nil || !strings.Contains(err.Error(), ownedtest.ErrUnavailable.Error()) {
			t.Errorf("%s fails: %v", failing, err)
		}
	}
}
