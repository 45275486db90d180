package watches

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/reconcile/owned/ownedtest"
)

// start runs the controller of clusters until the end of the test, which runs in a bubble of testing/synctest. The
// hosting cluster has the cluster demo, which names the ConfigMap audit. metadata reports events of users' objects.
func start(t *testing.T, reconciler reconcile.Func) (manager *ownedtest.Manager, metadata *ownedtest.Events) {
	t.Helper()
	manager, metadata = ownedtest.NewManager(t), ownedtest.NewEvents(t)
	host := ownedtest.NewHost(t, ownedtest.NewCluster(func(c *v1alpha1.ApiServerCluster) {
		c.Spec.Audit = &v1alpha1.Audit{ConfigurationFiles: v1alpha1.ConfigurationFiles{
			ConfigMapRef: &corev1.LocalObjectReference{Name: "audit"},
		}}
	}))
	host.Must(SetUp(manager, host.Client, metadata, reconciler))
	go func() {
		if err := manager.Start(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	synctest.Wait()
	return manager, metadata
}

// ownedBy returns an object with the labels of a cluster's objects. Unless owner is "", the cluster with that name
// controls it.
func ownedBy[T client.Object](owner string, object T) T {
	object.SetNamespace("ns")
	object.SetName("demo-0")
	object.SetLabels(desired.Labels(ownedtest.NewCluster()))
	if owner != "" {
		cluster := ownedtest.NewCluster(func(c *v1alpha1.ApiServerCluster) { c.Name = owner })
		object.SetOwnerReferences([]metav1.OwnerReference{
			*metav1.NewControllerRef(cluster, v1alpha1.GroupVersion.WithKind("ApiServerCluster")),
		})
	}
	return object
}

// metadataOf returns the metadata of an object as the cache of users' objects has it.
func metadataOf(kind, namespace, name string) client.Object {
	object := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	object.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(kind))
	return object
}

// scheduleOf returns a backup schedule of a cluster.
func scheduleOf(cluster string) *v1alpha1.ApiServerBackupSchedule {
	s := &v1alpha1.ApiServerBackupSchedule{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "nightly"}}
	s.Spec.Template.ClusterName = cluster
	return s
}

// TestEvents checks which clusters an event reconciles. An event has the object before, after, or before and after a
// change.
func TestEvents(t *testing.T) {
	former := ownedtest.NewCluster()
	changed := func(change func(*v1alpha1.ApiServerCluster)) client.Object {
		cluster := former.DeepCopy()
		cluster.ResourceVersion = "2"
		change(cluster)
		return cluster
	}
	for name, test := range map[string]struct {
		before, after client.Object
		want          []string
	}{
		"cluster created": {nil, former, []string{"demo"}},
		"cluster deleted": {former, nil, []string{"demo"}},
		"spec changed":    {former, changed(func(c *v1alpha1.ApiServerCluster) { c.Generation++ }), []string{"demo"}},
		"annotation added": {former, changed(func(c *v1alpha1.ApiServerCluster) {
			c.Annotations = map[string]string{v1alpha1.ReplaceSecretsAnnotation: "demo-client-ca"}
		}), []string{"demo"}},
		"status written": {former, changed(ownedtest.Bootstrapped), nil},
		"label added": {former, changed(func(c *v1alpha1.ApiServerCluster) {
			c.Labels = map[string]string{"team": "a"}
		}), nil},

		"owned Pod deleted": {ownedBy("demo", &corev1.Pod{}), nil, []string{"demo"}},
		"owned claim":       {nil, ownedBy("demo", &corev1.PersistentVolumeClaim{}), []string{"demo"}},
		"owned Service":     {nil, ownedBy("demo", &corev1.Service{}), []string{"demo"}},
		"owned Secret":      {nil, ownedBy("demo", &corev1.Secret{}), []string{"demo"}},
		"owned Deployment":  {nil, ownedBy("demo", &appsv1.Deployment{}), []string{"demo"}},
		"owned budget":      {nil, ownedBy("demo", &policyv1.PodDisruptionBudget{}), []string{"demo"}},
		"owned policy":      {nil, ownedBy("demo", &networkingv1.NetworkPolicy{}), []string{"demo"}},

		"Pod with labels only": {nil, ownedBy("", &corev1.Pod{}), nil}, // a pod of a companion has such labels
		"claim detached": {
			ownedBy("demo", &corev1.PersistentVolumeClaim{}), ownedBy("", &corev1.PersistentVolumeClaim{}), []string{"demo"},
		},
		"detached claim deleted": {ownedBy("", &corev1.PersistentVolumeClaim{}), nil, []string{"demo"}},
		"detached Secret":        {nil, ownedBy("", &corev1.Secret{}), []string{"demo"}},
		"claim adopted": {
			ownedBy("demo", &corev1.PersistentVolumeClaim{}), ownedBy("other", &corev1.PersistentVolumeClaim{}),
			[]string{"demo", "other"},
		},

		"schedule moved":   {scheduleOf("demo"), scheduleOf("other"), []string{"demo", "other"}},
		"schedule deleted": {scheduleOf("demo"), nil, []string{"demo"}},
		"backup":           {nil, ownedBy("", &v1alpha1.ApiServerBackup{}), nil},

		"ConfigMap of the spec":       {nil, metadataOf("ConfigMap", "ns", "audit"), []string{"demo"}},
		"another ConfigMap":           {nil, metadataOf("ConfigMap", "ns", "other"), nil},
		"ConfigMap elsewhere":         {nil, metadataOf("ConfigMap", "elsewhere", "audit"), nil},
		"Secret named like ConfigMap": {nil, metadataOf("Secret", "ns", "audit"), nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mutex sync.Mutex
				requests := map[string]bool{}
				manager, metadata := start(t, func(_ context.Context, request reconcile.Request) (reconcile.Result, error) {
					mutex.Lock()
					defer mutex.Unlock()
					requests[request.String()] = true
					return reconcile.Result{}, nil
				})
				events := manager.Events
				if _, ok := test.after.(*metav1.PartialObjectMetadata); ok {
					events = metadata
				}
				switch {
				case test.before == nil:
					events.Create(test.after)
				case test.after == nil:
					events.Delete(test.before)
				default:
					events.Update(test.before, test.after)
				}
				synctest.Wait()
				var want []string
				for _, name := range test.want {
					want = append(want, "ns/"+name)
				}
				if got := slices.Sorted(maps.Keys(requests)); !slices.Equal(got, want) {
					t.Errorf("reconciles %q, want %q", got, want)
				}
			})
		})
	}
}

// named returns the cluster with a name.
func named(name string) client.Object {
	return ownedtest.NewCluster(func(c *v1alpha1.ApiServerCluster) { c.Name = name })
}

// TestRetries checks that a cluster whose reconciliation fails is reconciled again after 50 milliseconds, and with
// twice the delay after each further failure, up to 15 seconds. A success ends that.
func TestRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls, results := make(chan time.Time), make(chan error)
		manager, _ := start(t, func(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
			select {
			case calls <- time.Now():
				return reconcile.Result{}, <-results
			case <-ctx.Done():
				return reconcile.Result{}, nil
			}
		})
		var delays []time.Duration
		manager.Events.Create(named("demo"))
		for last := <-calls; len(delays) < 11; {
			results <- errors.New("the hosting cluster is unavailable")
			next := <-calls
			delays = append(delays, next.Sub(last))
			last = next
		}
		var want []time.Duration
		for delay := 50 * time.Millisecond; len(want) < 11; delay *= 2 {
			want = append(want, min(delay, 15*time.Second))
		}
		if !slices.Equal(delays, want) {
			t.Errorf("delays %v, want %v", delays, want)
		}
		results <- nil
		synctest.Wait()
		manager.Events.Create(named("demo"))
		first := <-calls
		results <- errors.New("the hosting cluster is unavailable")
		if delay := (<-calls).Sub(first); delay != want[0] {
			t.Errorf("the delay after a success is %s, want %s", delay, want[0])
		}
		results <- nil
	})
}

// TestWorkers checks that a cluster whose reconciliation takes long does not delay others, unless there are four such
// clusters, and that no cluster is reconciled twice at the same time.
func TestWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mutex sync.Mutex
		var running []string
		finish := map[string]chan struct{}{}
		for _, name := range []string{"a", "b", "c", "d", "e"} {
			finish[name] = make(chan struct{})
		}
		manager, _ := start(t, func(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
			mutex.Lock()
			running = append(running, request.Name)
			mutex.Unlock()
			select {
			case <-finish[request.Name]:
			case <-ctx.Done():
			}
			mutex.Lock()
			defer mutex.Unlock()
			at := slices.Index(running, request.Name)
			running = slices.Delete(running, at, at+1)
			return reconcile.Result{}, nil
		})
		expect := func(step string, want ...string) {
			t.Helper()
			synctest.Wait()
			mutex.Lock()
			defer mutex.Unlock()
			if got := slices.Sorted(slices.Values(running)); !slices.Equal(got, want) {
				t.Errorf("%s: reconciles %q, want %q", step, got, want)
			}
		}
		manager.Events.Create(named("a"))
		expect("the first event", "a")
		manager.Events.Create(named("a"))
		expect("another event of the cluster", "a")
		for _, name := range []string{"b", "c", "d", "e"} {
			manager.Events.Create(named(name))
		}
		expect("events of four more clusters", "a", "b", "c", "d")
		finish["b"] <- struct{}{}
		expect("one is finished", "a", "c", "d", "e")
		finish["a"] <- struct{}{}
		expect("the first one is finished and has another event", "a", "c", "d", "e")
		for _, name := range []string{"a", "c", "d", "e"} {
			finish[name] <- struct{}{}
		}
		expect("all are finished")
	})
}
