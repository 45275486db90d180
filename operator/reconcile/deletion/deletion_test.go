package deletion

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/etcd"
	"quorate.dev/operator/reconcile/apiservices"
	"quorate.dev/operator/reconcile/owned/ownedtest"
	"quorate.dev/operator/status"
)

// stepsOn returns the steps of a host.
func stepsOn(h *ownedtest.Host) Steps {
	return Steps{Objects: h.Objects, Etcd: etcd.NewPool(), Clock: clocktesting.NewFakeClock(ownedtest.Now())}
}

// deleting is a change of a cluster: its deletion was requested.
func deleting(c *v1alpha1.ApiServerCluster) {
	c.Finalizers, c.DeletionTimestamp = []string{Finalizer}, &metav1.Time{Time: ownedtest.Now()}
}

// healthy is a change of a cluster: its etcd has a quorum.
func healthy(c *v1alpha1.ApiServerCluster) {
	ownedtest.Bootstrapped(c)
	c.Status.Conditions = []metav1.Condition{{Type: v1alpha1.EtcdQuorum, Status: metav1.ConditionTrue}}
}

// withBackup is a change of a cluster: it has a final backup.
func withBackup(c *v1alpha1.ApiServerCluster) { c.Spec.Deletion.FinalBackup = &v1alpha1.FinalBackup{} }

// TestAwait checks the reasons for which a requested deletion waits.
func TestAwait(t *testing.T) {
	backup := func(edit func(*v1alpha1.ApiServerBackup)) *v1alpha1.ApiServerBackup {
		b := &v1alpha1.ApiServerBackup{ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: "demo-final-demo", CreationTimestamp: metav1.NewTime(ownedtest.Now().Add(time.Minute)),
		}}
		b.Spec.ClusterName = "demo"
		edit(b)
		return b
	}
	terminating := apierrors.NewForbidden(schema.GroupResource{}, "b", errors.New("the namespace is terminating"))
	terminating.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	for name, test := range map[string]struct {
		change  func(*v1alpha1.ApiServerCluster)
		backup  *v1alpha1.ApiServerBackup
		refuse  error // of the creation of the backup
		reason  string
		message string
		event   string
		err     bool
	}{
		"nothing": {},
		"protected": {
			change: func(c *v1alpha1.ApiServerCluster) { c.Spec.Deletion.Protected = true },
			reason: v1alpha1.ReasonDeletionProtected, message: "spec.deletion.protected",
		},
		"begun": {change: func(c *v1alpha1.ApiServerCluster) {
			c.Spec.Deletion.Protected, c.Status.Deletion = true, &v1alpha1.DeletionStatus{
				StartTime: metav1.NewTime(ownedtest.Now()),
			}
		}},
		"no data": {change: withBackup, event: "FinalBackupSkipped"},
		"no backup yet": {
			change: func(c *v1alpha1.ApiServerCluster) { healthy(c); withBackup(c) },
			reason: v1alpha1.ReasonWaitingForFinalBackup, message: "Waiting for final backup demo-final-demo",
			event: "FinalBackupCreated",
		},
		"no quorum": {
			change: func(c *v1alpha1.ApiServerCluster) { ownedtest.Bootstrapped(c); withBackup(c) },
			reason: v1alpha1.ReasonFinalBackupBlocked, message: "etcd has no quorum",
		},
		"hibernated": {
			change: func(c *v1alpha1.ApiServerCluster) { healthy(c); withBackup(c); c.Spec.Replicas = new(int32) },
			reason: v1alpha1.ReasonFinalBackupBlocked, message: "hibernated",
		},
		"external etcd": {
			change: func(c *v1alpha1.ApiServerCluster) { withBackup(c); c.Spec.Etcd.External = &v1alpha1.ExternalEtcd{} },
			reason: v1alpha1.ReasonFinalBackupBlocked, message: "external etcd",
		},
		"no quorum in a terminating namespace": {
			change: func(c *v1alpha1.ApiServerCluster) { ownedtest.Bootstrapped(c); withBackup(c) }, refuse: terminating,
			event: "FinalBackupSkipped",
		},
		"terminating namespace": {
			change: func(c *v1alpha1.ApiServerCluster) { healthy(c); withBackup(c) }, refuse: terminating,
			event: "FinalBackupSkipped",
		},
		"invalid": {
			change: func(c *v1alpha1.ApiServerCluster) { healthy(c); withBackup(c) },
			refuse: apierrors.NewInvalid(schema.GroupKind{}, "b", nil),
			reason: v1alpha1.ReasonFinalBackupBlocked, message: "is invalid",
		},
		"unavailable": {
			change: func(c *v1alpha1.ApiServerCluster) { healthy(c); withBackup(c) },
			refuse: ownedtest.ErrUnavailable, err: true,
		},
		"running": {
			change: withBackup, backup: backup(func(b *v1alpha1.ApiServerBackup) {
				b.Status.Conditions = []metav1.Condition{{Type: v1alpha1.BackupComplete, Message: "uploading"}}
			}), reason: v1alpha1.ReasonWaitingForFinalBackup, message: "uploading",
		},
		"completed": {
			change: withBackup, backup: backup(func(b *v1alpha1.ApiServerBackup) { b.Status.Phase = v1alpha1.BackupCompleted }),
		},
		"failed": {
			change: withBackup, backup: backup(func(b *v1alpha1.ApiServerBackup) { b.Status.Phase = v1alpha1.BackupFailed }),
			reason: v1alpha1.ReasonFinalBackupFailed, message: "the final backup failed",
		},
		"older": {
			change: withBackup, backup: backup(func(b *v1alpha1.ApiServerBackup) {
				b.CreationTimestamp = metav1.NewTime(ownedtest.Now().Add(-time.Hour))
			}),
			reason: v1alpha1.ReasonFinalBackupBlocked, message: "older than the request",
		},
		"of another cluster": {
			change: withBackup, backup: backup(func(b *v1alpha1.ApiServerBackup) { b.Spec.ClusterName = "other" }),
			reason: v1alpha1.ReasonFinalBackupBlocked, message: "of another cluster",
		},
		"former one": {
			change: withBackup, backup: backup(func(b *v1alpha1.ApiServerBackup) {
				b.Finalizers, b.DeletionTimestamp = []string{"f/f"}, &metav1.Time{Time: ownedtest.Now()}
			}), reason: v1alpha1.ReasonWaitingForFinalBackup, message: "the former ApiServerBackup",
		},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := ownedtest.NewCluster(deleting)
			if test.change != nil {
				test.change(cluster)
			}
			stored := []client.Object{cluster}
			if test.backup != nil {
				stored = append(stored, test.backup)
			}
			h := ownedtest.NewHost(t, stored...)
			h.Refuse = func(request string) error {
				if strings.HasPrefix(request, "create") {
					return test.refuse
				}
				return nil
			}
			wait, err := stepsOn(h).Await(t.Context(), h.Cluster())
			if (err != nil) != test.err {
				t.Fatal(err)
			}
			if (wait == nil) != (test.reason == "") ||
				wait != nil && (wait.Reason != test.reason || !strings.Contains(wait.Message, test.message)) {
				t.Errorf("waits for %+v, want %s: %s", wait, test.reason, test.message)
			}
			if events := strings.Join(h.Events(), "\n"); !strings.Contains(events, test.event) ||
				test.event == "" && events != "" {
				t.Errorf("events %q, want %s", events, test.event)
			}
		})
	}
}

// TestHold checks that the reason is reported once, and that the garbage collector is kept from deleting objects.
func TestHold(t *testing.T) {
	h := ownedtest.NewHost(t, ownedtest.NewCluster(deleting, func(c *v1alpha1.ApiServerCluster) {
		c.Finalizers = append(c.Finalizers, metav1.FinalizerDeleteDependents, metav1.FinalizerOrphanDependents)
	}))
	wait := &status.Wait{Reason: v1alpha1.ReasonDeletionProtected, Message: "it is protected"}
	h.Refuse = func(string) error { return ownedtest.ErrUnavailable }
	if err := stepsOn(h).Hold(t.Context(), h.Cluster(), wait); !errors.Is(err, ownedtest.ErrUnavailable) {
		t.Errorf("a failed patch: %v", err)
	}
	h.Refuse = nil
	h.Events()
	h.Must(stepsOn(h).Hold(t.Context(), h.Cluster(), wait))
	if cluster := h.Cluster(); !slices.Equal(cluster.Finalizers, []string{Finalizer}) {
		t.Errorf("finalizers %v", cluster.Finalizers)
	}
	if events := h.Events(); !slices.Equal(events, []string{"Warning DeletionProtected: it is protected"}) {
		t.Errorf("events %q", events)
	}
	ownedtest.Change(h, "demo", &v1alpha1.ApiServerCluster{}, func(c *v1alpha1.ApiServerCluster) {
		c.Status.Conditions = []metav1.Condition{{Type: v1alpha1.Deleting, Reason: wait.Reason, Message: wait.Message}}
	})
	h.Must(stepsOn(h).Hold(t.Context(), h.Cluster(), wait))
	if events := h.Events(); len(events) != 0 {
		t.Errorf("repeated events %q", events)
	}
}

// populated returns a host with a cluster that is being deleted, its objects, and a Secret of another owner.
func populated(t *testing.T, changes ...func(*v1alpha1.ApiServerCluster)) *ownedtest.Host {
	t.Helper()
	cluster := ownedtest.NewCluster(append(changes, deleting)...)
	foreign := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "foreign", Labels: desired.Labels(cluster)},
	}
	h := ownedtest.NewHost(t, cluster, foreign)
	for _, service := range desired.Services(cluster) {
		h.Must(h.Create(t.Context(), cluster, service))
	}
	h.Must(h.Create(t.Context(), cluster, desired.Claim(cluster, "demo-0")))
	h.Must(h.Create(t.Context(), cluster, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "demo-client-ca", Labels: desired.Labels(cluster),
	}}))
	h.Must(h.Create(t.Context(), cluster, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: desired.RestorePodName(cluster)},
	}))
	if cluster.IsExtension() {
		h.Must(apiservices.EnsureHostAccess(t.Context(), h.Objects, cluster, apiservices.Host{
			Server: "https://host", CAData: []byte("CA"),
		}))
		h.CreateAll(&apiregistrationv1.APIService{
			ObjectMeta: metav1.ObjectMeta{Name: "v1.example.org", Labels: desired.ExtensionSelector(cluster)},
		})
	}
	return h
}

// removeAll executes Remove until the cluster is gone, as reconciliations do, or returns its error.
func removeAll(h *ownedtest.Host) error {
	for h.Exists("demo", &v1alpha1.ApiServerCluster{}) {
		if _, err := stepsOn(h).Remove(h.Context(), h.Cluster()); err != nil {
			return err
		}
	}
	return nil
}

// TestRemove checks that all objects of a cluster are deleted before the cluster, except for those that stay.
func TestRemove(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*v1alpha1.ApiServerCluster)
		left   []string
	}{
		"cluster": {func(*v1alpha1.ApiServerCluster) {}, []string{"Secret foreign"}},
		"retained data": {func(c *v1alpha1.ApiServerCluster) {
			ownedtest.Bootstrapped(c)
			c.Spec.Deletion.Policy = v1alpha1.RetainData
		}, []string{"PersistentVolumeClaim demo-0", "Secret demo-client-ca", "Secret demo-retained", "Secret foreign"}},
		"extension": {
			func(c *v1alpha1.ApiServerCluster) { c.Spec.Mode = v1alpha1.ModeExtension }, []string{"Secret foreign"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := populated(t, test.change)
			result, err := stepsOn(h).Remove(t.Context(), h.Cluster())
			if err != nil || result.RequeueAfter == 0 || !h.Exists("demo", &v1alpha1.ApiServerCluster{}) ||
				!h.Cluster().DeletionStarted() {
				t.Errorf("%+v, %v", result, err)
			}
			if !meta.IsStatusConditionTrue(h.Cluster().Status.Conditions, v1alpha1.Deleting) {
				t.Errorf("conditions %+v", h.Cluster().Status.Conditions)
			}
			h.Must(removeAll(h))
			if left := h.Names(); !slices.Equal(left, test.left) {
				t.Errorf("left %v, want %v", left, test.left)
			}
		})
	}
}

// TestTerminatingRegistration checks that a cluster stays while its APIService waits for a finalizer in the host, and
// that the APIService is deleted only once.
func TestTerminatingRegistration(t *testing.T) {
	h := populated(t, func(c *v1alpha1.ApiServerCluster) { c.Spec.Mode = v1alpha1.ModeExtension })
	service := &apiregistrationv1.APIService{}
	h.Must(h.API.Get(t.Context(), ownedtest.Key("v1.example.org"), service))
	service.Finalizers = []string{"example.org/wait"}
	h.Must(h.API.Update(t.Context(), service))
	deletions := 0
	h.Refuse = func(request string) error {
		if strings.HasPrefix(request, "delete APIService") {
			deletions++
		}
		return nil
	}
	for i := range 3 {
		result, err := stepsOn(h).Remove(t.Context(), h.Cluster())
		if err != nil || i > 0 && result.RequeueAfter != terminationInterval {
			t.Errorf("%+v, %v", result, err)
		}
	}
	if !h.Exists("demo-client-ca", &corev1.Secret{}) || deletions != 1 {
		t.Errorf("deleted the APIService %d times, or other objects before it", deletions)
	}
}

// TestFinalizer checks that a cluster gets the finalizer once, and that a cluster without it is left alone.
func TestFinalizer(t *testing.T) {
	h := ownedtest.NewHost(t, ownedtest.NewCluster())
	cluster := h.Cluster()
	result, err := stepsOn(h).Remove(t.Context(), cluster)
	if err != nil || result.RequeueAfter != 0 || cluster.DeletionStarted() {
		t.Errorf("%+v, %v", result, err)
	}
	ownedtest.FailEach(t, func(t *testing.T) *ownedtest.Host {
		return ownedtest.NewHost(t,
			ownedtest.NewCluster())
	}, func(h *ownedtest.Host) error {
		return EnsureFinalizer(h.Context(), h.Objects, h.Cluster())
	})
	h.Must(EnsureFinalizer(t.Context(), h.Objects, cluster))
	h.Refuse = func(string) error { return ownedtest.ErrUnavailable }
	h.Must(EnsureFinalizer(t.Context(), h.Objects, cluster))
}

// TestAcknowledged checks that the newest known states of members are recorded before their volumes are retained.
func TestAcknowledged(t *testing.T) {
	h := ownedtest.NewHost(t, ownedtest.NewCluster(deleting, func(c *v1alpha1.ApiServerCluster) {
		c.Status.Members = []v1alpha1.MemberStatus{
			{Name: "demo-0", ID: "1"}, {Name: "demo-1", ID: "2", Acknowledged: &v1alpha1.Acknowledged{Index: 9}},
			{Name: "demo-2", ID: "3"},
		}
	}))
	steps := stepsOn(h)
	steps.Etcd.Acknowledge("ns/demo", []etcd.Member{{ID: 1, Applied: 7, Term: 2}, {ID: 2, Applied: 8, Term: 2}},
		ownedtest.Now())
	cluster := h.Cluster()
	_, err := steps.Remove(t.Context(), cluster)
	h.Must(err)
	for i, want := range []int64{7, 9, 0} {
		got := int64(0)
		if a := cluster.Status.Members[i].Acknowledged; a != nil {
			got = a.Index
		}
		if got != want {
			t.Errorf("member %d: index %d, want %d", i, got, want)
		}
	}
}

// TestNames checks the length of the name of the final backup.
func TestNames(t *testing.T) {
	cluster := ownedtest.NewCluster(func(c *v1alpha1.ApiServerCluster) {
		c.Name, c.UID = strings.Repeat("x", 63), "11111111-a"
	})
	if name := FinalBackupName(cluster); len(name) != 57 || !strings.HasSuffix(name, "-final-11111111") {
		t.Error(name)
	}
}

// TestFailedRequests lets each request fail with which a cluster is deleted.
func TestFailedRequests(t *testing.T) {
	for _, change := range []func(*v1alpha1.ApiServerCluster){
		func(c *v1alpha1.ApiServerCluster) { c.Spec.Mode = v1alpha1.ModeExtension },
		func(c *v1alpha1.ApiServerCluster) {
			ownedtest.Bootstrapped(c)
			c.Spec.Deletion.Policy = v1alpha1.RetainData
		},
	} {
		ownedtest.FailEach(t, func(t *testing.T) *ownedtest.Host { return populated(t, change) }, removeAll)
	}
}
