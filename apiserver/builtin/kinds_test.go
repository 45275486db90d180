package builtin_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/kubernetes/pkg/apis/authentication"
	"k8s.io/kubernetes/pkg/apis/authorization"
	"k8s.io/kubernetes/pkg/apis/autoscaling"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/builtin"
	"quorate.dev/apiserver/builtin/builtintest"
	"quorate.dev/apiserver/controllers/bootstrap"
	"quorate.dev/apiserver/resource"
)

var (
	controllers         = schema.GroupResource{Resource: "replicationcontrollers"}
	definitionsResource = schema.GroupResource{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}
)

func TestScaleIsAViewOfItsParent(t *testing.T) {
	s := builtintest.NewServer(t, builtin.Options{}, nil)
	ctx := t.Context()
	one := int32(1)
	pod := builtintest.NewPod("web")
	key := resource.Key{GroupResource: controllers, Namespace: "default"}
	must[runtime.Object](t)(s.Create(ctx, key, &core.ReplicationController{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"},
		Spec: core.ReplicationControllerSpec{
			Replicas: &one, Selector: pod.Labels,
			Template: &core.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: pod.Labels}, Spec: pod.Spec},
		},
	}, resource.WriteOptions{}))
	scale := func(replicas int32) error {
		_, err := s.Update(ctx, resource.Key{
			GroupResource: controllers, Subresource: "scale", Namespace: "default", Name: "web",
		}, func(o runtime.Object) error {
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

type oneToken string

func (o oneToken) AuthenticateToken(_ context.Context, token string) (*authenticator.Response, bool, error) {
	if token != string(o) {
		return nil, false, nil
	}
	return &authenticator.Response{User: &user.DefaultInfo{Name: "jane", Groups: []string{"team"}}}, true, nil
}

// onlyReads authorizes every get and nothing else.
type onlyReads struct{}

func (onlyReads) Authorize(_ context.Context, attributes authorizer.Attributes) (authorizer.Decision, string, error) {
	if attributes.GetVerb() == "get" {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

func TestReviews(t *testing.T) {
	s := builtintest.NewServer(t, builtin.Options{Tokens: oneToken("secret"), Authorizer: onlyReads{}}, nil)
	ctx := builtintest.WithUser(t.Context(), "jane", "team")
	create := func(group, plural string, body runtime.Object) runtime.Object {
		t.Helper()
		return must[runtime.Object](t)(s.Call(ctx, resource.Key{
			GroupResource: schema.GroupResource{Group: group, Resource: plural},
		}, body))
	}
	good := create("authentication.k8s.io", "tokenreviews",
		&authentication.TokenReview{Spec: authentication.TokenReviewSpec{Token: "secret"}}).(*authentication.TokenReview)
	if !good.Status.Authenticated || good.Status.User.Username != "jane" {
		t.Errorf("token review: %+v", good.Status)
	}
	bad := create("authentication.k8s.io", "tokenreviews",
		&authentication.TokenReview{Spec: authentication.TokenReviewSpec{Token: "guess"}}).(*authentication.TokenReview)
	if bad.Status.Authenticated || bad.Status.User.Username != "" {
		t.Errorf("token review of a wrong token: %+v", bad.Status)
	}
	self := create("authentication.k8s.io", "selfsubjectreviews",
		&authentication.SelfSubjectReview{}).(*authentication.SelfSubjectReview)
	if self.Status.UserInfo.Username != "jane" {
		t.Errorf("self review: %+v", self.Status)
	}
	for verb, want := range map[string]bool{"get": true, "delete": false} {
		review := create("authorization.k8s.io", "selfsubjectaccessreviews", &authorization.SelfSubjectAccessReview{
			Spec: authorization.SelfSubjectAccessReviewSpec{
				ResourceAttributes: &authorization.ResourceAttributes{Verb: verb, Resource: "pods"},
			},
		}).(*authorization.SelfSubjectAccessReview)
		if review.Status.Allowed != want {
			t.Errorf("may jane %s pods: %+v", verb, review.Status)
		}
		spec := authorization.SubjectAccessReviewSpec{
			User: "joe", ResourceAttributes: &authorization.ResourceAttributes{Namespace: "team", Verb: verb, Resource: "pods"},
		}
		other := create("authorization.k8s.io", "subjectaccessreviews",
			&authorization.SubjectAccessReview{Spec: spec}).(*authorization.SubjectAccessReview)
		if other.Status.Allowed != want {
			t.Errorf("may joe %s pods: %+v", verb, other.Status)
		}
		local := schema.GroupResource{Group: "authorization.k8s.io", Resource: "localsubjectaccessreviews"}
		body := &authorization.LocalSubjectAccessReview{ObjectMeta: metav1.ObjectMeta{Namespace: "team"}, Spec: spec}
		if answer := must[runtime.Object](t)(
			s.Call(ctx, resource.Key{GroupResource: local, Namespace: "team"}, body),
		).(*authorization.LocalSubjectAccessReview); answer.Status.Allowed != want {
			t.Errorf("may joe %s pods in team: %+v", verb, answer.Status)
		}
		if _, err := s.Call(
			ctx, resource.Key{GroupResource: local, Namespace: "elsewhere"}, body,
		); !apierrors.IsBadRequest(err) {
			t.Errorf("a review of another namespace: %v", err)
		}
	}
}

const widgets = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"widgets.example.com"},
"spec":{"group":"example.com","scope":"Cluster","names":{"plural":"widgets","kind":"Widget"},
"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object"}}}]}}`

func TestCustomResourceDefinitionStaysForItsInstances(t *testing.T) {
	s := builtintest.NewServer(t, builtin.Options{}, nil)
	ctx := t.Context()
	name := "widgets.example.com"
	match, _ := s.Catalog.Current().Find(definitionsResource)
	definition := decode(t, match.Version.Codec, []byte(widgets), runtime.ContentTypeJSON)
	must[runtime.Object](t)(s.Create(ctx,
		resource.Key{GroupResource: definitionsResource}, definition, resource.WriteOptions{}))
	stored := must[*clientv3.GetResponse](t)(s.Etcd.Get(ctx,
		"/registry/apiextensions.k8s.io/customresourcedefinitions/"+name))
	if len(stored.Kvs) != 1 ||
		!bytes.HasPrefix(stored.Kvs[0].Value,
			[]byte(`{"kind":"CustomResourceDefinition","apiVersion":"apiextensions.k8s.io/v1beta1"`)) {
		t.Errorf("stored as %.120s", stored.Kvs)
	}
	key := resource.Key{GroupResource: definitionsResource, Name: name}
	// The text of other kinds begins with a capital.
	const conflict = `Operation cannot be fulfilled on customresourcedefinitions.apiextensions.k8s.io "widgets.example.com": ` +
		"precondition failed: UID in precondition: other, UID in object meta: "
	err := s.Delete(ctx, key, metav1.NewPreconditionDeleteOptions("other"))
	if !apierrors.IsConflict(err) || !strings.HasPrefix(err.Error(), conflict) {
		t.Errorf("got the error %v, want %s", err, conflict)
	}
	if err := s.Delete(ctx, key, &metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	deleted := must[runtime.Object](t)(s.Get(ctx, key, resource.ReadOptions{})).(*apiextensions.CustomResourceDefinition)
	if deleted.DeletionTimestamp == nil ||
		!apiextensions.CRDHasFinalizer(deleted, apiextensions.CustomResourceCleanupFinalizer) ||
		!apiextensions.IsCRDConditionTrue(deleted, apiextensions.Terminating) {
		t.Errorf("deleted definition: %+v %+v", deleted.ObjectMeta, deleted.Status.Conditions)
	}
}

func TestSystemPriorityClassesCannotBeDeleted(t *testing.T) {
	s := builtintest.NewServer(t, builtin.Options{}, nil)
	if err := bootstrap.New(s, clock.RealClock{}, logr.Discard()).PriorityClasses(t.Context()); err != nil {
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
