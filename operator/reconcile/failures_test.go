package reconcile

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/reconcile/outcome"
	"quorate.dev/operator/reconcile/owned/ownedtest"
	"quorate.dev/test/upstream"
)

// newHostedCluster returns a cluster in a hosting cluster whose requests can be made to fail.
func newHostedCluster(t *testing.T) (*cluster, *ownedtest.Host) {
	t.Helper()
	c, h := newCluster(t), ownedtest.NewHost(t)
	c.client, c.reconciler.Client, c.reconciler.Reader = h.API, h.Client, h.Reader
	return c, h
}

// expectFailures refuses the requests with a prefix, and expects that the next three reconciliations return the error.
func expectFailures(t *testing.T, c *cluster, h *ownedtest.Host, prefix string) {
	t.Helper()
	h.Refuse = func(request string) error {
		if strings.HasPrefix(request, prefix) {
			return ownedtest.ErrUnavailable
		}
		return nil
	}
	for range 3 {
		_, err := c.reconciler.Reconcile(t.Context(), ctrl.Request{NamespacedName: demo})
		if !errors.Is(err, ownedtest.ErrUnavailable) {
			t.Errorf("got the error %v", err)
		}
	}
}

// TestFailedStepIsReported makes some requests of a reconciliation fail. The condition Degraded names the step that has
// failed, steps that do not depend on its result are executed, and the next reconciliation without failures does the
// rest.
func TestFailedStepIsReported(t *testing.T) {
	for _, test := range []struct {
		request string // beginning of the requests that fail
		step    string
		pod     bool // the pod of the first member is created nevertheless
	}{
		{"patch ApiServerCluster", "finalizer", false},
		{"list PodList", "observation", false},
		{"list PersistentVolumeClaimList", "observation", false},
		{"get Secret demo-encryption-keys", "configuration", false},
		{"get Service", "services", false},
		{"get Secret demo-client-ca", "certificates", false},
		{"create Secret demo-serving", "certificates", false},
		{"create PersistentVolumeClaim", "membership", false},
		{"create Pod ", "membership", false},
		{"get NetworkPolicy", "network policies", true},
		{"get Secret demo-admin-kubeconfig", "kubeconfig", true},
		{"create PodDisruptionBudget", "disruption budget", true},
		{"list ApiServerBackupScheduleList", "backups", true},
	} {
		t.Run(test.request, func(t *testing.T) {
			t.Parallel()
			c, h := newHostedCluster(t)
			c.execute([]string{"create", "replicas=3"})
			expectFailures(t, c, h, test.request)
			degraded := meta.FindStatusCondition(c.get().Status.Conditions, v1alpha1.Degraded)
			if degraded == nil || degraded.Status != metav1.ConditionTrue || degraded.Reason != v1alpha1.ReasonReconcileFailed ||
				!strings.HasPrefix(degraded.Message, test.step+": ") ||
				!strings.Contains(degraded.Message, ownedtest.ErrUnavailable.Error()) {
				t.Errorf("Degraded is %+v, want a message about %s", degraded, test.step)
			}
			if got := h.Exists("demo-0", &corev1.Pod{}); got != test.pod {
				t.Errorf("objects %q, want the pod of the first member: %t", h.Names(), test.pod)
			}
			h.Refuse = nil
			c.execute([]string{"settle"})
			if degraded := meta.FindStatusCondition(c.get().Status.Conditions, v1alpha1.Degraded); !h.Exists("demo-2",
				&corev1.Pod{}) || degraded.Status != metav1.ConditionFalse {
				t.Errorf("without failures: Degraded is %+v, objects %q", degraded, h.Names())
			}
		})
	}
}

// failingOnce makes the request with a number fail, counted from 0, and records all requests.
type failingOnce struct {
	failing  int
	requests []string
}

func (f *failingOnce) refuse(request string) error {
	f.requests = append(f.requests, request)
	if len(f.requests) == f.failing+1 {
		return ownedtest.ErrUnavailable
	}
	return nil
}

// converge reconciles a cluster in a hosting cluster, as another operator, until nothing changes any more. It reports
// whether a failure was returned or is the cause of a condition.
func converge(t *testing.T, h *ownedtest.Host) (reported bool) {
	t.Helper()
	c := newCluster(t)
	c.client, c.reconciler.Client, c.reconciler.Reader = h.API, h.Client, h.Reader
	unchanged := 0
	for range 40 {
		result, err := c.reconciler.Reconcile(t.Context(), ctrl.Request{NamespacedName: demo})
		object := &v1alpha1.ApiServerCluster{}
		exists := h.Exists("demo", object)
		reported = reported || err != nil || slices.ContainsFunc(object.Status.Conditions, func(c metav1.Condition) bool {
			return strings.Contains(c.Message, ownedtest.ErrUnavailable.Error())
		})
		if unchanged++; err != nil || exists && result.RequeueAfter < outcome.ShortWait {
			unchanged = 0
		}
		if unchanged == 2 {
			return reported
		}
	}
	t.Fatal("the cluster is reconciled again and again")
	return false
}

// TestFailedRequests lets one request fail, for each kind of request with which the objects of a cluster are created
// and deleted. With QUORATE_HOSTILE, it does so for each single request. The failure is reported, and the final objects
// are the same as without the failure.
func TestFailedRequests(t *testing.T) {
	upstream.NeedsTime(t)
	encrypted := []string{"create", "replicas=1", "encryption=secretbox"}
	extension := []string{"create", "replicas=1", "external=https://etcd:2379", "extension=example.org/v1"}
	for name, test := range map[string]struct {
		create  []string
		deleted bool // the requests are those of the deletion
	}{
		"create an encrypted cluster": {encrypted, false},
		"create an extension":         {extension, false},
		"delete an extension":         {extension, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run := func(failing int) (requests, objects []string, reported bool) {
				c, h := newHostedCluster(t)
				c.execute(test.create)
				if test.deleted {
					converge(t, h)
					c.execute([]string{"delete"})
				}
				f := &failingOnce{failing: failing}
				h.Refuse = f.refuse
				reported = converge(t, h)
				return f.requests, h.Names(), reported
			}
			requests, want, reported := run(-1)
			if reported {
				t.Fatal("a failure is reported without one")
			}
			failed := map[string]bool{}
			for failing, request := range requests {
				verb, rest, _ := strings.Cut(request, " ")
				kind, _, _ := strings.Cut(rest, " ")
				if failed[verb+kind] && seeds(t, 0) == 0 {
					continue
				}
				failed[verb+kind] = true
				_, got, reported := run(failing)
				if !reported {
					t.Errorf("request %d, %s, has failed: it is not reported", failing, request)
				}
				if !slices.Equal(got, want) {
					t.Errorf("request %d, %s, has failed: left %q, want %q", failing, request, got, want)
				}
			}
		})
	}
}

// TestDeletionUnavailable checks that nothing is deleted while it is unknown whether the deletion has to wait for a
// backup, or while the garbage collector cannot be prevented from deleting a protected cluster.
func TestDeletionUnavailable(t *testing.T) {
	for name, test := range map[string]struct {
		deletion v1alpha1.Deletion
		refused  string
	}{
		"final backup": {finalBackup(), "get ApiServerBackup"},
		"protected":    {v1alpha1.Deletion{Protected: true}, "patch ApiServerCluster demo"},
	} {
		t.Run(name, func(t *testing.T) {
			c, h := newHostedCluster(t)
			c.execute([]string{"create", "replicas=1"})
			c.execute([]string{"settle"})
			ownedtest.Change(h, "demo", &v1alpha1.ApiServerCluster{}, func(object *v1alpha1.ApiServerCluster) {
				object.Spec.Deletion = test.deletion
				object.Finalizers = append(object.Finalizers, metav1.FinalizerDeleteDependents)
			})
			c.execute([]string{"settle"})
			before := h.Names()
			c.execute([]string{"delete"})
			expectFailures(t, c, h, test.refused)
			if got := h.Names(); !slices.Equal(got, before) || c.get().DeletionStarted() {
				t.Errorf("objects %q, want %q", got, before)
			}
		})
	}
}

// TestWithoutImage checks that nothing is created, and that Degraded says why, if neither the spec nor the operator has
// an image.
func TestWithoutImage(t *testing.T) {
	c, h := newHostedCluster(t)
	c.reconciler.Image = ""
	c.execute([]string{"create", "replicas=1"})
	c.execute([]string{"settle"})
	const want = "spec.image is empty and the operator has no default image"
	degraded := meta.FindStatusCondition(c.get().Status.Conditions, v1alpha1.Degraded)
	if degraded.Reason != v1alpha1.ReasonInvalidSpec || degraded.Message != want || len(h.Names()) != 0 {
		t.Errorf("Degraded is %+v, objects %q", degraded, h.Names())
	}
	c.execute([]string{"set", "image=quorate:2"})
	c.execute([]string{"settle"})
	if degraded := meta.FindStatusCondition(c.get().Status.Conditions, v1alpha1.Degraded); degraded.Status !=
		metav1.ConditionFalse || !h.Exists("demo-0", &corev1.Pod{}) {
		t.Errorf("with an image: Degraded is %+v, objects %q", degraded, h.Names())
	}
}

// TestSetupWithManager checks that a change of a ConfigMap that a spec names causes a reconciliation, which begins with
// a read of the cluster.
func TestSetupWithManager(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, h := newHostedCluster(t)
		c.execute([]string{"create", "replicas=1", "audit=policy"})
		sources, manager := ownedtest.NewEvents(t), ownedtest.NewManager(t)
		c.reconciler.Sources = sources
		var requests []string
		h.Refuse = func(request string) error {
			requests = append(requests, request)
			if request == "get ApiServerCluster demo" {
				return ownedtest.ErrUnavailable
			}
			return nil
		}
		c.must(c.reconciler.SetupWithManager(manager))
		go func() {
			if err := manager.Start(t.Context()); err != nil {
				t.Error(err)
			}
		}()
		synctest.Wait()
		policy := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "policy"}}
		policy.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("ConfigMap"))
		sources.Create(policy)
		synctest.Wait()
		if want := []string{"list ApiServerClusterList", "get ApiServerCluster demo"}; !slices.Equal(requests, want) {
			t.Errorf("requests %q, want %q", requests, want)
		}
	})
}
