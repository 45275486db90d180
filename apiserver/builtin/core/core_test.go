package core_test

import (
	"context"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/policy"

	"quorate.dev/apiserver/builtin"
	"quorate.dev/apiserver/builtin/builtintest"
	"quorate.dev/apiserver/etcd/etcdtest"
	"quorate.dev/apiserver/resource"
)

var (
	namespaces = schema.GroupResource{Resource: "namespaces"}
	pods       = schema.GroupResource{Resource: "pods"}
	budgets    = schema.GroupResource{Group: "policy", Resource: "poddisruptionbudgets"}
)

func TestBindingAssignsAPodOnce(t *testing.T) {
	s := builtintest.NewServer(t, builtin.Options{}, nil)
	ctx := t.Context()
	created := must[runtime.Object](t)(s.Create(ctx,
		resource.Key{GroupResource: pods, Namespace: "default"}, builtintest.NewPod("web"),
		resource.WriteOptions{})).(*core.Pod)
	bind := func(node string, uid types.UID) error {
		_, err := s.Call(ctx, resource.Key{
			GroupResource: pods, Subresource: "binding", Namespace: "default", Name: "web",
		}, &core.Binding{
			ObjectMeta: metav1.ObjectMeta{
				Name: "web", Namespace: "default", UID: uid, Annotations: map[string]string{"example.com/by": node},
			},
			Target: core.ObjectReference{Kind: "Node", Name: node},
		})
		return err
	}
	if err := bind("one", "another"); !apierrors.IsConflict(err) {
		t.Errorf("binding another pod of the name: %v", err)
	}
	if err := bind("one", created.UID); err != nil {
		t.Fatal(err)
	}
	key := resource.Key{GroupResource: pods, Namespace: "default", Name: "web"}
	pod := must[runtime.Object](t)(s.Get(ctx, key, resource.ReadOptions{})).(*core.Pod)
	if pod.Spec.NodeName != "one" || pod.Annotations["example.com/by"] != "one" || len(pod.Status.Conditions) != 1 {
		t.Errorf("bound pod: node %q, annotations %v, conditions %v", pod.Spec.NodeName,
			pod.Annotations, pod.Status.Conditions)
	}
	if err := bind("two", ""); !apierrors.IsConflict(err) {
		t.Errorf("binding again: %v", err)
	}
	_, err := s.Update(ctx, key, func(o runtime.Object) error { o.(*core.Pod).Spec.NodeName = "two"; return nil },
		resource.WriteOptions{})
	if !apierrors.IsInvalid(err) {
		t.Errorf("moving a pod by update: %v", err)
	}
}

// createReady creates a ready pod.
func createReady(t *testing.T, s *builtintest.Server, name string) {
	t.Helper()
	must[runtime.Object](t)(s.Create(t.Context(),
		resource.Key{GroupResource: pods, Namespace: "default"}, builtintest.NewPod(name), resource.WriteOptions{}))
	key := resource.Key{GroupResource: pods, Subresource: "status", Namespace: "default", Name: name}
	must[runtime.Object](t)(s.Update(t.Context(), key, func(o runtime.Object) error {
		pod := o.(*core.Pod)
		pod.Status.Phase = core.PodRunning
		pod.Status.Conditions = []core.PodCondition{{Type: core.PodReady, Status: core.ConditionTrue}}
		return nil
	}, resource.WriteOptions{}))
}

func evict(ctx context.Context, s *builtintest.Server, name string) error {
	now := int64(0)
	_, err := s.Call(ctx, resource.Key{
		GroupResource: pods, Subresource: "eviction", Namespace: "default", Name: name,
	}, &policy.Eviction{
		ObjectMeta:    metav1.ObjectMeta{Name: name, Namespace: "default"},
		DeleteOptions: &metav1.DeleteOptions{GracePeriodSeconds: &now},
	})
	return err
}

func TestEvictionSpendsItsBudget(t *testing.T) {
	s := builtintest.NewServer(t, builtin.Options{}, nil)
	ctx := t.Context()
	key := resource.Key{GroupResource: budgets, Namespace: "default"}
	must[runtime.Object](t)(s.Create(ctx, key, &policy.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "all", Namespace: "default"},
		Spec:       policy.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{}},
	}, resource.WriteOptions{}))
	createReady(t, s, "one")
	createReady(t, s, "two")
	if err := evict(t.Context(), s, "one"); !apierrors.IsTooManyRequests(err) {
		t.Fatalf("a budget without observed generation: %v", err)
	}
	must[runtime.Object](t)(s.Update(ctx, resource.Key{
		GroupResource: budgets, Subresource: "status", Namespace: "default", Name: "all",
	}, func(o runtime.Object) error {
		budget := o.(*policy.PodDisruptionBudget)
		budget.Status = policy.PodDisruptionBudgetStatus{
			ObservedGeneration: budget.Generation, DisruptionsAllowed: 1, CurrentHealthy: 2, DesiredHealthy: 1, ExpectedPods: 2,
		}
		return nil
	}, resource.WriteOptions{}))
	if err := evict(t.Context(), s, "one"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(ctx,
		resource.Key{GroupResource: pods, Namespace: "default", Name: "one"},
		resource.ReadOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the evicted pod: %v", err)
	}
	if err := evict(t.Context(), s, "two"); !apierrors.IsTooManyRequests(err) {
		t.Errorf("the budget is spent: %v", err)
	}
	budget := must[runtime.Object](t)(s.Get(ctx,
		resource.Key{GroupResource: budgets, Namespace: "default", Name: "all"},
		resource.ReadOptions{})).(*policy.PodDisruptionBudget)
	if _, noted := budget.Status.DisruptedPods["one"]; !noted || budget.Status.DisruptionsAllowed != 0 {
		t.Errorf("budget: %+v", budget.Status)
	}
}

// TestEvictionHonoursBudgetMissingInCache: a budget protects pods even if the cache of the replica is stale.
func TestEvictionHonoursBudgetMissingInCache(t *testing.T) {
	client := etcdtest.Client(t)
	behind, other := builtintest.NewServerOn(t, client, builtin.Options{}, nil), builtintest.NewServerOn(t,
		client, builtin.Options{}, nil)
	for _, gr := range []schema.GroupResource{budgets, pods} {
		must[[]runtime.Object](t)(behind.List(t.Context(),
			resource.Key{GroupResource: gr, Namespace: "default"}, resource.ReadOptions{Cached: true}))
	}
	behind.Freeze()
	createReady(t, other, "one")
	key := resource.Key{GroupResource: budgets, Namespace: "default"}
	must[runtime.Object](t)(other.Create(t.Context(), key, &policy.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "all", Namespace: "default"},
		Spec:       policy.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{}},
	}, resource.WriteOptions{}))
	// The read of the current budgets waits for the cache until the request ends.
	limited, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if err := evict(limited, behind, "one"); err == nil {
		t.Error("a protected pod was evicted")
	}
	must[runtime.Object](t)(other.Get(t.Context(),
		resource.Key{GroupResource: pods, Namespace: "default", Name: "one"}, resource.ReadOptions{}))
}

func TestEvictionOfPendingPodNeedsNoBudget(t *testing.T) {
	s := builtintest.NewServer(t, builtin.Options{}, nil)
	must[runtime.Object](t)(s.Create(t.Context(),
		resource.Key{GroupResource: pods, Namespace: "default"}, builtintest.NewPod("pending"), resource.WriteOptions{}))
	if err := evict(t.Context(), s, "pending"); err != nil {
		t.Fatal(err)
	}
	key := resource.Key{GroupResource: pods, Namespace: "default", Name: "pending"}
	if _, err := s.Get(t.Context(), key, resource.ReadOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the evicted pod: %v", err)
	}
}

func TestNamespaceStaysUntilItIsFinalized(t *testing.T) {
	s := builtintest.NewServer(t, builtin.Options{}, nil)
	ctx := t.Context()
	must[runtime.Object](t)(s.Create(ctx,
		resource.Key{GroupResource: namespaces},
		&core.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}}, resource.WriteOptions{}))
	key := resource.Key{GroupResource: namespaces, Name: "team"}
	if err := s.Delete(ctx, key, &metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	namespace := must[runtime.Object](t)(s.Get(ctx, key, resource.ReadOptions{})).(*core.Namespace)
	if namespace.Status.Phase != core.NamespaceTerminating || namespace.DeletionTimestamp == nil ||
		len(namespace.Spec.Finalizers) != 1 {
		t.Fatalf("deleted namespace: %+v", namespace)
	}
	must[runtime.Object](t)(s.Update(ctx, resource.Key{
		GroupResource: namespaces, Subresource: "finalize", Name: "team",
	}, func(o runtime.Object) error {
		o.(*core.Namespace).Spec.Finalizers = nil
		return nil
	}, resource.WriteOptions{}))
	if _, err := s.Get(ctx, key, resource.ReadOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("finalized namespace: %v", err)
	}
}

func TestTerminatingNamespaceSurvivesStatusUpdates(t *testing.T) {
	s := builtintest.NewServer(t, builtin.Options{}, nil)
	ctx := t.Context()
	must[runtime.Object](t)(s.Create(ctx,
		resource.Key{GroupResource: namespaces},
		&core.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}}, resource.WriteOptions{}))
	key := resource.Key{GroupResource: namespaces, Name: "team"}
	if err := s.Delete(ctx, key, &metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	must[runtime.Object](t)(s.Update(ctx, resource.Key{
		GroupResource: namespaces, Subresource: "status", Name: "team",
	}, func(o runtime.Object) error {
		namespace := o.(*core.Namespace)
		namespace.Status.Conditions = append(namespace.Status.Conditions, core.NamespaceCondition{
			Type: "NamespaceContentRemaining", Status: core.ConditionTrue,
		})
		return nil
	}, resource.WriteOptions{}))
	if _, err := s.Get(ctx, key, resource.ReadOptions{}); err != nil {
		t.Errorf("a terminating namespace was deleted by a status update: %v", err)
	}
}
