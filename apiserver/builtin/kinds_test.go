package builtin_test

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/kubernetes/pkg/apis/authentication"
	"k8s.io/kubernetes/pkg/apis/authorization"
	"k8s.io/kubernetes/pkg/apis/autoscaling"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/policy"

	"quorate.dev/apiserver/builtin"
	"quorate.dev/apiserver/etcd/etcdtest"
	"quorate.dev/apiserver/resource"
)

var (
	controllers         = schema.GroupResource{Resource: "replicationcontrollers"}
	definitionsResource = schema.GroupResource{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}
	budgets             = schema.GroupResource{Group: "policy", Resource: "poddisruptionbudgets"}
)

func TestBindingAssignsAPodOnce(t *testing.T) {
	s := newServer(t, builtin.Options{}, nil)
	ctx := t.Context()
	created := must[runtime.Object](t)(s.Create(ctx,
		resource.Key{GroupResource: pods, Namespace: "default"}, newPod("web"), resource.WriteOptions{})).(*core.Pod)
	bind := func(node string, uid types.UID) error {
		_, err := s.call(ctx, pods, "binding", "default", "web", &core.Binding{
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
	key := resource.Key{GroupResource: pods, Namespace: "default", Name: "web"}
	pod := must[runtime.Object](t)(s.Get(ctx, key, resource.ReadOptions{})).(*core.Pod)
	if pod.Spec.NodeName != "one" || pod.Annotations["example.com/by"] != "one" || len(pod.Status.Conditions) != 1 {
		t.Errorf("bound pod: node %q, annotations %v, conditions %v", pod.Spec.NodeName, pod.Annotations, pod.Status.Conditions)
	}
	if err := bind("two", ""); !apierrors.IsConflict(err) {
		t.Errorf("binding again: %v", err)
	}
	_, err := s.Update(ctx, key, func(o runtime.Object) error { o.(*core.Pod).Spec.NodeName = "two"; return nil }, resource.WriteOptions{})
	if !apierrors.IsInvalid(err) {
		t.Errorf("moving a pod by update: %v", err)
	}
}

// ready makes a pod one that a budget protects.
func (s *server) ready(t *testing.T, name string) {
	t.Helper()
	must[runtime.Object](t)(s.Create(t.Context(),
		resource.Key{GroupResource: pods, Namespace: "default"}, newPod(name), resource.WriteOptions{}))
	key := resource.Key{GroupResource: pods, Subresource: "status", Namespace: "default", Name: name}
	must[runtime.Object](t)(s.Update(t.Context(), key, func(o runtime.Object) error {
		pod := o.(*core.Pod)
		pod.Status.Phase = core.PodRunning
		pod.Status.Conditions = []core.PodCondition{{Type: core.PodReady, Status: core.ConditionTrue}}
		return nil
	}, resource.WriteOptions{}))
}

func (s *server) evict(t *testing.T, name string) error {
	t.Helper()
	now := int64(0)
	_, err := s.call(t.Context(), pods, "eviction", "default", name, &policy.Eviction{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, DeleteOptions: &metav1.DeleteOptions{GracePeriodSeconds: &now},
	})
	return err
}

func TestEvictionSpendsItsBudget(t *testing.T) {
	s := newServer(t, builtin.Options{}, nil)
	ctx := t.Context()
	key := resource.Key{GroupResource: budgets, Namespace: "default"}
	must[runtime.Object](t)(s.Create(ctx, key, &policy.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "all", Namespace: "default"},
		Spec:       policy.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{}},
	}, resource.WriteOptions{}))
	s.ready(t, "one")
	s.ready(t, "two")
	if err := s.evict(t, "one"); !apierrors.IsTooManyRequests(err) {
		t.Fatalf("a budget that nobody has counted: %v", err)
	}
	must[runtime.Object](t)(s.Update(ctx, resource.Key{GroupResource: budgets, Subresource: "status", Namespace: "default", Name: "all"}, func(o runtime.Object) error {
		budget := o.(*policy.PodDisruptionBudget)
		budget.Status = policy.PodDisruptionBudgetStatus{ObservedGeneration: budget.Generation, DisruptionsAllowed: 1, CurrentHealthy: 2, DesiredHealthy: 1, ExpectedPods: 2}
		return nil
	}, resource.WriteOptions{}))
	if err := s.evict(t, "one"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(ctx,
		resource.Key{GroupResource: pods, Namespace: "default", Name: "one"},
		resource.ReadOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the evicted pod: %v", err)
	}
	if err := s.evict(t, "two"); !apierrors.IsTooManyRequests(err) {
		t.Errorf("the budget is spent: %v", err)
	}
	budget := must[runtime.Object](t)(s.Get(ctx,
		resource.Key{GroupResource: budgets, Namespace: "default", Name: "all"},
		resource.ReadOptions{})).(*policy.PodDisruptionBudget)
	if _, noted := budget.Status.DisruptedPods["one"]; !noted || budget.Status.DisruptionsAllowed != 0 {
		t.Errorf("budget: %+v", budget.Status)
	}
}

// TestEvictionMindsABudgetThatTheCacheHasNot: what a replica has in its cache may be old, a budget protects all the same.
func TestEvictionMindsABudgetThatTheCacheHasNot(t *testing.T) {
	client := etcdtest.Client(t)
	behind, other := newServerOn(t, client, builtin.Options{}, nil), newServerOn(t, client, builtin.Options{}, nil)
	for _, gr := range []schema.GroupResource{budgets, pods} {
		must[[]runtime.Object](t)(behind.List(t.Context(),
			resource.Key{GroupResource: gr, Namespace: "default"}, resource.ReadOptions{Cached: true}))
	}
	behind.freeze()
	other.ready(t, "one")
	key := resource.Key{GroupResource: budgets, Namespace: "default"}
	must[runtime.Object](t)(other.Create(t.Context(), key, &policy.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "all", Namespace: "default"},
		Spec:       policy.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{}},
	}, resource.WriteOptions{}))
	if err := behind.evict(t, "one"); err == nil {
		t.Error("a protected pod was evicted")
	}
	must[runtime.Object](t)(other.Get(t.Context(),
		resource.Key{GroupResource: pods, Namespace: "default", Name: "one"}, resource.ReadOptions{}))
}

func TestEvictionOfPendingPodNeedsNoBudget(t *testing.T) {
	s := newServer(t, builtin.Options{}, nil)
	must[runtime.Object](t)(s.Create(t.Context(),
		resource.Key{GroupResource: pods, Namespace: "default"}, newPod("pending"), resource.WriteOptions{}))
	if err := s.evict(t, "pending"); err != nil {
		t.Fatal(err)
	}
	key := resource.Key{GroupResource: pods, Namespace: "default", Name: "pending"}
	if _, err := s.Get(t.Context(), key, resource.ReadOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the evicted pod: %v", err)
	}
}

func TestScaleIsAViewOfItsParent(t *testing.T) {
	s := newServer(t, builtin.Options{}, nil)
	ctx := t.Context()
	one := int32(1)
	pod := newPod("web")
	key := resource.Key{GroupResource: controllers, Namespace: "default"}
	must[runtime.Object](t)(s.Create(ctx, key, &core.ReplicationController{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"},
		Spec: core.ReplicationControllerSpec{
			Replicas: &one, Selector: pod.Labels,
			Template: &core.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: pod.Labels}, Spec: pod.Spec},
		},
	}, resource.WriteOptions{}))
	scale := func(replicas int32) error {
		_, err := s.Update(ctx, resource.Key{GroupResource: controllers, Subresource: "scale", Namespace: "default", Name: "web"}, func(o runtime.Object) error {
			view, ok := o.(*autoscaling.Scale)
			if !ok {
				return fmt.Errorf("scale shows a %T", o)
			}
			if view.Status.Selector != "app=web" {
				return fmt.Errorf("selector %q", view.Status.Selector)
			}
			view.Spec.Replicas = replicas
			return nil
		}, resource.WriteOptions{})
		return err
	}
	if err := scale(3); err != nil {
		t.Fatal(err)
	}
	if got := must[runtime.Object](t)(s.Get(ctx,
		resource.Key{GroupResource: controllers, Namespace: "default", Name: "web"},
		resource.ReadOptions{})).(*core.ReplicationController); *got.Spec.Replicas != 3 {
		t.Errorf("%d replicas", *got.Spec.Replicas)
	}
	if err := scale(-1); !apierrors.IsInvalid(err) {
		t.Errorf("negative replicas: %v", err)
	}
}

func TestNamespaceStaysUntilItIsFinalized(t *testing.T) {
	s := newServer(t, builtin.Options{}, nil)
	ctx := t.Context()
	must[runtime.Object](t)(s.Create(ctx,
		resource.Key{GroupResource: namespaces},
		&core.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}}, resource.WriteOptions{}))
	key := resource.Key{GroupResource: namespaces, Name: "team"}
	if err := s.Delete(ctx, key, &metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	namespace := must[runtime.Object](t)(s.Get(ctx, key, resource.ReadOptions{})).(*core.Namespace)
	if namespace.Status.Phase != core.NamespaceTerminating || namespace.DeletionTimestamp == nil || len(namespace.Spec.Finalizers) != 1 {
		t.Fatalf("deleted namespace: %+v", namespace)
	}
	must[runtime.Object](t)(s.Update(ctx, resource.Key{GroupResource: namespaces, Subresource: "finalize", Name: "team"}, func(o runtime.Object) error {
		o.(*core.Namespace).Spec.Finalizers = nil
		return nil
	}, resource.WriteOptions{}))
	if _, err := s.Get(ctx, key, resource.ReadOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("finalized namespace: %v", err)
	}
}

func TestTerminatingNamespaceSurvivesStatusUpdates(t *testing.T) {
	s := newServer(t, builtin.Options{}, nil)
	ctx := t.Context()
	must[runtime.Object](t)(s.Create(ctx,
		resource.Key{GroupResource: namespaces},
		&core.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}}, resource.WriteOptions{}))
	key := resource.Key{GroupResource: namespaces, Name: "team"}
	if err := s.Delete(ctx, key, &metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	must[runtime.Object](t)(s.Update(ctx, resource.Key{GroupResource: namespaces, Subresource: "status", Name: "team"}, func(o runtime.Object) error {
		namespace := o.(*core.Namespace)
		namespace.Status.Conditions = append(namespace.Status.Conditions, core.NamespaceCondition{Type: "NamespaceContentRemaining", Status: core.ConditionTrue})
		return nil
	}, resource.WriteOptions{}))
	if _, err := s.Get(ctx, key, resource.ReadOptions{}); err != nil {
		t.Errorf("a namespace with content left: %v", err)
	}
}

type oneToken string

func (o oneToken) AuthenticateToken(_ context.Context, token string) (*authenticator.Response, bool, error) {
	if token != string(o) {
		return nil, false, nil
	}
	return &authenticator.Response{User: &user.DefaultInfo{Name: "jane", Groups: []string{"team"}}}, true, nil
}

func TestReviews(t *testing.T) {
	s := newServer(t, builtin.Options{Tokens: oneToken("secret"), Authorizer: onlyReads{}}, nil)
	ctx := asUser(t.Context(), "jane", "team")
	create := func(group, plural string, body runtime.Object) runtime.Object {
		t.Helper()
		return must[runtime.Object](t)(s.call(ctx, schema.GroupResource{Group: group, Resource: plural}, "", "", "", body))
	}
	good := create("authentication.k8s.io", "tokenreviews", &authentication.TokenReview{Spec: authentication.TokenReviewSpec{Token: "secret"}}).(*authentication.TokenReview)
	if !good.Status.Authenticated || good.Status.User.Username != "jane" {
		t.Errorf("token review: %+v", good.Status)
	}
	bad := create("authentication.k8s.io", "tokenreviews", &authentication.TokenReview{Spec: authentication.TokenReviewSpec{Token: "guess"}}).(*authentication.TokenReview)
	if bad.Status.Authenticated || bad.Status.User.Username != "" {
		t.Errorf("token review of a wrong token: %+v", bad.Status)
	}
	self := create("authentication.k8s.io", "selfsubjectreviews", &authentication.SelfSubjectReview{}).(*authentication.SelfSubjectReview)
	if self.Status.UserInfo.Username != "jane" {
		t.Errorf("self review: %+v", self.Status)
	}
	for verb, want := range map[string]bool{"get": true, "delete": false} {
		review := create("authorization.k8s.io", "selfsubjectaccessreviews", &authorization.SelfSubjectAccessReview{
			Spec: authorization.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorization.ResourceAttributes{Verb: verb, Resource: "pods"}},
		}).(*authorization.SelfSubjectAccessReview)
		if review.Status.Allowed != want {
			t.Errorf("may jane %s pods: %+v", verb, review.Status)
		}
		spec := authorization.SubjectAccessReviewSpec{User: "joe", ResourceAttributes: &authorization.ResourceAttributes{Namespace: "team", Verb: verb, Resource: "pods"}}
		other := create("authorization.k8s.io", "subjectaccessreviews", &authorization.SubjectAccessReview{Spec: spec}).(*authorization.SubjectAccessReview)
		if other.Status.Allowed != want {
			t.Errorf("may joe %s pods: %+v", verb, other.Status)
		}
		local := schema.GroupResource{Group: "authorization.k8s.io", Resource: "localsubjectaccessreviews"}
		body := &authorization.LocalSubjectAccessReview{ObjectMeta: metav1.ObjectMeta{Namespace: "team"}, Spec: spec}
		if answer := must[runtime.Object](t)(s.call(ctx, local, "", "team", "", body)).(*authorization.LocalSubjectAccessReview); answer.Status.Allowed != want {
			t.Errorf("may joe %s pods in team: %+v", verb, answer.Status)
		}
		if _, err := s.call(ctx, local, "", "elsewhere", "", body); !apierrors.IsBadRequest(err) {
			t.Errorf("a review of another namespace: %v", err)
		}
	}
}

const widgets = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"widgets.example.com"},
"spec":{"group":"example.com","scope":"Cluster","names":{"plural":"widgets","kind":"Widget"},
"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]}}`

func TestCustomResourceDefinitionStaysForItsInstances(t *testing.T) {
	s := newServer(t, builtin.Options{}, nil)
	ctx := t.Context()
	name := "widgets.example.com"
	match, _ := s.catalog.Current().Find(definitionsResource)
	definition := decode(t, match.Version.Codec, []byte(widgets), runtime.ContentTypeJSON)
	must[runtime.Object](t)(s.Create(ctx,
		resource.Key{GroupResource: definitionsResource}, definition, resource.WriteOptions{}))
	stored := must[*clientv3.GetResponse](t)(s.client.Get(ctx, "/registry/apiextensions.k8s.io/customresourcedefinitions/"+name))
	if len(stored.Kvs) != 1 || !bytes.HasPrefix(stored.Kvs[0].Value, []byte(`{"kind":"CustomResourceDefinition","apiVersion":"apiextensions.k8s.io/v1beta1"`)) {
		t.Errorf("stored as %.120s", stored.Kvs)
	}
	key := resource.Key{GroupResource: definitionsResource, Name: name}
	if err := s.Delete(ctx, key, &metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	deleted := must[runtime.Object](t)(s.Get(ctx, key, resource.ReadOptions{})).(*apiextensions.CustomResourceDefinition)
	if deleted.DeletionTimestamp == nil || !apiextensions.CRDHasFinalizer(deleted, apiextensions.CustomResourceCleanupFinalizer) ||
		!apiextensions.IsCRDConditionTrue(deleted, apiextensions.Terminating) {
		t.Errorf("deleted definition: %+v %+v", deleted.ObjectMeta, deleted.Status.Conditions)
	}
}

func TestSystemPriorityClassesCannotBeDeleted(t *testing.T) {
	s := newServer(t, builtin.Options{}, nil)
	if err := ensure(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	classes := schema.GroupResource{Group: "scheduling.k8s.io", Resource: "priorityclasses"}
	const class = "system-node-critical"
	key := resource.Key{GroupResource: classes, Name: class}
	if err := s.Delete(t.Context(), key, &metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("got %v", err)
	}
	must[runtime.Object](t)(s.Get(t.Context(), key, resource.ReadOptions{}))
}
