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
)

var (
	namespaces = schema.GroupResource{Resource: "namespaces"}
	pods       = schema.GroupResource{Resource: "pods"}
	budgets    = schema.GroupResource{Group: "policy", Resource: "poddisruptionbudgets"}
)

func TestBindingAssignsAPodOnce(t *testing.T) {
	s := builtintest.NewServer(t, builtin.Options{}, nil)
	ctx := t.Context()
	created := must[runtime.Object](t)(s.Create(ctx, pods, "default", builtintest.NewPod("web"), false)).(*core.Pod)
	bind := func(node string, uid types.UID) error {
		_, err := s.Call(ctx, builtintest.Key{GroupResource: pods, Subresource: "binding", Namespace: "default", Name: "web"}, &core.Binding{
			ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: uid, Annotations: map[string]string{"example.com/by": node}},
			Target:     core.ObjectReference{Kind: "Node", Name: node},
		})
		return err
	}
	if err := bind("one", "another"); !apierrors.IsConflict(err) {
		t.Errorf("binding another pod of the name: %v", err)
	}
	if err := bind("one", created.UID); err != nil {
		t.Fatal(err)
	}
	pod := must[runtime.Object](t)(s.Get(ctx, pods, "default", "web")).(*core.Pod)
	if pod.Spec.NodeName != "one" || pod.Annotations["example.com/by"] != "one" || len(pod.Status.Conditions) != 1 {
		t.Errorf("bound pod: node %q, annotations %v, conditions %v", pod.Spec.NodeName, pod.Annotations, pod.Status.Conditions)
	}
	if err := bind("two", ""); !apierrors.IsConflict(err) {
		t.Errorf("binding again: %v", err)
	}
	_, err := s.Update(ctx, pods, "", "default", "web", func(o runtime.Object) error { o.(*core.Pod).Spec.NodeName = "two"; return nil }, false)
	if !apierrors.IsInvalid(err) {
		t.Errorf("moving a pod by update: %v", err)
	}
}

// createReady creates a ready pod.
func createReady(t *testing.T, s *builtintest.Server, name string) {
	t.Helper()
	must[runtime.Object](t)(s.Create(t.Context(), pods, "default", builtintest.NewPod(name), false))
	must[runtime.Object](t)(s.Update(t.Context(), pods, "status", "default", name, func(o runtime.Object) error {
		pod := o.(*core.Pod)
		pod.Status.Phase = core.PodRunning
		pod.Status.Conditions = []core.PodCondition{{Type: core.PodReady, Status: core.ConditionTrue}}
		return nil
	}, false))
}

func evict(ctx context.Context, s *builtintest.Server, name string) error {
	now := int64(0)
	_, err := s.Call(ctx, builtintest.Key{GroupResource: pods, Subresource: "eviction", Namespace: "default", Name: name}, &policy.Eviction{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, DeleteOptions: &metav1.DeleteOptions{GracePeriodSeconds: &now},
	})
	return err
}

func TestEvictionSpendsItsBudget(t *testing.T) {
	s := builtintest.NewServer(t, builtin.Options{}, nil)
	ctx := t.Context()
	must[runtime.Object](t)(s.Create(ctx, budgets, "default", &policy.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "all", Namespace: "default"},
		Spec:       policy.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{}},
	}, false))
	createReady(t, s, "one")
	createReady(t, s, "two")
	if err := evict(t.Context(), s, "one"); !apierrors.IsTooManyRequests(err) {
		t.Fatalf("a budget without observed generation: %v", err)
	}
	must[runtime.Object](t)(s.Update(ctx, budgets, "status", "default", "all", func(o runtime.Object) error {
		budget := o.(*policy.PodDisruptionBudget)
		budget.Status = policy.PodDisruptionBudgetStatus{ObservedGeneration: budget.Generation, DisruptionsAllowed: 1, CurrentHealthy: 2, DesiredHealthy: 1, ExpectedPods: 2}
		return nil
	}, false))
	if err := evict(t.Context(), s, "one"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(ctx, pods, "default", "one"); !apierrors.IsNotFound(err) {
		t.Errorf("the evicted pod: %v", err)
	}
	if err := evict(t.Context(), s, "two"); !apierrors.IsTooManyRequests(err) {
		t.Errorf("the budget is spent: %v", err)
	}
	budget := must[runtime.Object](t)(s.Get(ctx, budgets, "default", "all")).(*policy.PodDisruptionBudget)
	if _, noted := budget.Status.DisruptedPods["one"]; !noted || budget.Status.DisruptionsAllowed != 0 {
		t.Errorf("budget: %+v", budget.Status)
	}
}

// TestEvictionHonoursBudgetMissingInCache: a budget protects pods even if the cache of the replica is stale.
func TestEvictionHonoursBudgetMissingInCache(t *testing.T) {
	client := etcdtest.Client(t)
	behind, other := builtintest.NewServerOn(t, client, builtin.Options{}, nil), builtintest.NewServerOn(t, client, builtin.Options{}, nil)
	for _, resource := range []schema.GroupResource{budgets, pods} {
		must[[]runtime.Object](t)(behind.List(t.Context(), resource, "default"))
	}
	behind.Freeze()
	createReady(t, other, "one")
	must[runtime.Object](t)(other.Create(t.Context(), budgets, "default", &policy.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "all", Namespace: "default"},
		Spec:       policy.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{}},
	}, false))
	// The read of the current budgets waits for the cache until the request ends.
	limited, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if err := evict(limited, behind, "one"); err == nil {
		t.Error("a protected pod was evicted")
	}
	must[runtime.Object](t)(other.Get(t.Context(), pods, "default", "one"))
}

func TestEvictionOfPendingPodNeedsNoBudget(t *testing.T) {
	s := builtintest.NewServer(t, builtin.Options{}, nil)
	must[runtime.Object](t)(s.Create(t.Context(), pods, "default", builtintest.NewPod("pending"), false))
	if err := evict(t.Context(), s, "pending"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(t.Context(), pods, "default", "pending"); !apierrors.IsNotFound(err) {
		t.Errorf("the evicted pod: %v", err)
	}
}

func TestNamespaceStaysUntilItIsFinalized(t *testing.T) {
	s := builtintest.NewServer(t, builtin.Options{}, nil)
	ctx := t.Context()
	must[runtime.Object](t)(s.Create(ctx, namespaces, "", &core.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}}, false))
	if err := s.Delete(ctx, namespaces, "", "team", &metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	namespace := must[runtime.Object](t)(s.Get(ctx, namespaces, "", "team")).(*core.Namespace)
	if namespace.Status.Phase != core.NamespaceTerminating || namespace.DeletionTimestamp == nil || len(namespace.Spec.Finalizers) != 1 {
		t.Fatalf("deleted namespace: %+v", namespace)
	}
	must[runtime.Object](t)(s.Update(ctx, namespaces, "finalize", "", "team", func(o runtime.Object) error {
		o.(*core.Namespace).Spec.Finalizers = nil
		return nil
	}, false))
	if _, err := s.Get(ctx, namespaces, "", "team"); !apierrors.IsNotFound(err) {
		t.Errorf("finalized namespace: %v", err)
	}
}

func TestTerminatingNamespaceSurvivesStatusUpdates(t *testing.T) {
	s := builtintest.NewServer(t, builtin.Options{}, nil)
	ctx := t.Context()
	must[runtime.Object](t)(s.Create(ctx, namespaces, "", &core.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}}, false))
	if err := s.Delete(ctx, namespaces, "", "team", &metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	must[runtime.Object](t)(s.Update(ctx, namespaces, "status", "", "team", func(o runtime.Object) error {
		namespace := o.(*core.Namespace)
		namespace.Status.Conditions = append(namespace.Status.Conditions, core.NamespaceCondition{Type: "NamespaceContentRemaining", Status: core.ConditionTrue})
		return nil
	}, false))
	if _, err := s.Get(ctx, namespaces, "", "team"); err != nil {
		t.Errorf("a terminating namespace was deleted by a status update: %v", err)
	}
}
