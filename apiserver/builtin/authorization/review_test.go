package authorization

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"
	api "k8s.io/kubernetes/pkg/apis/authorization"

	"quorate.dev/apiserver/resource"
)

// policy decides by the verb of a request, and records the last request.
type policy struct{ last authorizer.Attributes }

func (p *policy) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	p.last = a
	switch a.GetVerb() {
	case "get":
		return authorizer.DecisionAllow, "everybody reads", nil
	case "delete":
		return authorizer.DecisionDeny, "nothing is deleted", nil
	case "list":
		return authorizer.DecisionNoOpinion, "", errors.New("no policy")
	}
	return authorizer.DecisionNoOpinion, "", nil
}

func (*policy) RulesFor(
	_ context.Context, u user.Info, namespace string,
) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	return []authorizer.ResourceRuleInfo{&authorizer.DefaultResourceRuleInfo{
			Verbs: []string{"get"}, APIGroups: []string{namespace}, Resources: []string{"pods"},
			ResourceNames: []string{u.GetName()},
		}}, []authorizer.NonResourceRuleInfo{&authorizer.DefaultNonResourceRuleInfo{
			Verbs: []string{"get"}, NonResourceURLs: []string{"/healthz"},
		}}, true, errors.New("a webhook has no rules")
}

var jane = user.DefaultInfo{
	Name: "jane", UID: "1", Groups: []string{"team"}, Extra: map[string][]string{"scope": {"all"}},
}

// requestContext returns the context of a request, whose version declarative validation needs.
func requestContext(t *testing.T) context.Context {
	t.Helper()
	return genericrequest.WithRequestInfo(t.Context(), &genericrequest.RequestInfo{
		APIGroup: "authorization.k8s.io", APIVersion: "v1",
	})
}

// call returns a call with a body that admission allows.
func call(namespace string, body runtime.Object) resource.Call {
	return resource.Call{Namespace: namespace, Body: body, Validate: func(context.Context) error { return nil }}
}

func pods(verb string) *api.ResourceAttributes {
	return &api.ResourceAttributes{Namespace: "default", Verb: verb, Resource: "pods"}
}

func TestDecisions(t *testing.T) {
	t.Parallel()
	for verb, want := range map[string]api.SubjectAccessReviewStatus{
		"get":    {Allowed: true, Reason: "everybody reads"},
		"delete": {Denied: true, Reason: "nothing is deleted"},
		"list":   {EvaluationError: "no policy"},
		"watch":  {},
	} {
		rules := &policy{}
		r := reviewer{rules, rules}
		spec := api.SubjectAccessReviewSpec{User: "joe", Groups: []string{"g"}, ResourceAttributes: pods(verb)}
		for name, status := range map[string]func() (api.SubjectAccessReviewStatus, error){
			"SubjectAccessReview": func() (api.SubjectAccessReviewStatus, error) {
				review := &api.SubjectAccessReview{Spec: spec}
				_, err := r.subject(requestContext(t), call("", review))
				return review.Status, err
			},
			"LocalSubjectAccessReview": func() (api.SubjectAccessReviewStatus, error) {
				review := &api.LocalSubjectAccessReview{ObjectMeta: metav1.ObjectMeta{Namespace: "default"}, Spec: spec}
				_, err := r.local(requestContext(t), call("default", review))
				return review.Status, err
			},
			"SelfSubjectAccessReview": func() (api.SubjectAccessReviewStatus, error) {
				review := &api.SelfSubjectAccessReview{Spec: api.SelfSubjectAccessReviewSpec{ResourceAttributes: pods(verb)}}
				_, err := r.self(genericrequest.WithUser(requestContext(t), &jane), call("", review))
				return review.Status, err
			},
		} {
			if got, err := status(); err != nil || got != want {
				t.Errorf("%s of %s: got %+v, %v, want %+v", name, verb, got, err, want)
			}
			subject := rules.last.GetUser().GetName()
			if self := name == "SelfSubjectAccessReview"; self && subject != "jane" || !self && subject != "joe" {
				t.Errorf("%s asked about %s", name, subject)
			}
		}
	}
}

// TestSelfReviewsHaveTheWholeUser: groups, UID and extra fields of the client are part of the decision.
func TestSelfReviewsHaveTheWholeUser(t *testing.T) {
	t.Parallel()
	rules := &policy{}
	review := &api.SelfSubjectAccessReview{
		Spec: api.SelfSubjectAccessReviewSpec{
			NonResourceAttributes: &api.NonResourceAttributes{Path: "/metrics", Verb: "get"},
		},
	}
	if _, err := (reviewer{rules, rules}).self(
		genericrequest.WithUser(requestContext(t), &jane), call("", review)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&jane, rules.last.GetUser()); diff != "" {
		t.Errorf("the user differs (-want +got):\n%s", diff)
	}
	if rules.last.IsResourceRequest() || rules.last.GetPath() != "/metrics" {
		t.Errorf("got the request %+v", rules.last)
	}
}

func TestRulesReview(t *testing.T) {
	t.Parallel()
	rules := &policy{}
	r, ctx := reviewer{rules, rules}, genericrequest.WithUser(requestContext(t), &jane)
	review := &api.SelfSubjectRulesReview{Spec: api.SelfSubjectRulesReviewSpec{Namespace: "default"}}
	response, err := r.selfRules(ctx, call("", review))
	if err != nil {
		t.Fatal(err)
	}
	want := &api.SelfSubjectRulesReview{Status: api.SubjectRulesReviewStatus{
		ResourceRules: []api.ResourceRule{{
			Verbs: []string{"get"}, APIGroups: []string{"default"}, Resources: []string{"pods"}, ResourceNames: []string{"jane"},
		}},
		NonResourceRules: []api.NonResourceRule{{Verbs: []string{"get"}, NonResourceURLs: []string{"/healthz"}}},
		Incomplete:       true, EvaluationError: "a webhook has no rules",
	}}
	if diff := cmp.Diff(want, response); diff != "" {
		t.Errorf("the rules differ (-want +got):\n%s", diff)
	}
}

func TestRejectedReviews(t *testing.T) {
	t.Parallel()
	rules := &policy{}
	r, none := reviewer{rules, rules}, reviewer{}
	known := genericrequest.WithUser(requestContext(t), &jane)
	refused := func(body runtime.Object) resource.Call {
		c := call("default", body)
		c.Validate = func(context.Context) error { return errors.New("refused") }
		return c
	}
	valid := api.SubjectAccessReviewSpec{User: "joe", ResourceAttributes: pods("get")}
	local := &api.LocalSubjectAccessReview{ObjectMeta: metav1.ObjectMeta{Namespace: "default"}, Spec: valid}
	subject := &api.SubjectAccessReview{Spec: valid}
	self := &api.SelfSubjectAccessReview{Spec: api.SelfSubjectAccessReviewSpec{ResourceAttributes: pods("get")}}
	selfRules := &api.SelfSubjectRulesReview{Spec: api.SelfSubjectRulesReviewSpec{Namespace: "default"}}
	const (
		noUser  = "no user present on request"
		noRules = "Internal error occurred: no authorizer for reviews"
	)
	for name, test := range map[string]struct {
		review resource.Action
		ctx    context.Context
		call   resource.Call
		want   string
	}{
		"a subject without a user": {
			r.subject, known, call("", &api.SubjectAccessReview{
				Spec: api.SubjectAccessReviewSpec{ResourceAttributes: pods("get")},
			}),
			`.authorization.k8s.io "" is invalid: spec.user: Invalid value: "": at least one of user or group must be specified`,
		},
		"nothing to review": {
			r.self, known, call("", &api.SelfSubjectAccessReview{}),
			`.authorization.k8s.io "" is invalid: spec: Invalid value: null: exactly one of nonResourceAttributes or ` +
				"resourceAttributes must be specified",
		},
		"a path in a namespace": {
			r.local, known, call("default", &api.LocalSubjectAccessReview{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default"},
				Spec: api.SubjectAccessReviewSpec{
					User: "joe", NonResourceAttributes: &api.NonResourceAttributes{Path: "/metrics", Verb: "get"},
				},
			}),
			`.authorization.k8s.io "" is invalid: spec.nonResourceAttributes: Invalid value: {"Path":"/metrics","Verb":"get"}: ` +
				"disallowed on this kind of request",
		},
		"a local review without a namespace": {
			r.local, known, call("", local), "namespace is required on this type: ",
		},
		"a local review of another namespace": {
			r.local, known, call("other", local), "spec.resourceAttributes.namespace must match namespace: other",
		},
		"an unknown client":              {r.self, requestContext(t), call("", self), noUser},
		"the rules of an unknown client": {r.selfRules, requestContext(t), call("", selfRules), noUser},
		"rules of no namespace": {
			r.selfRules, known, call("", &api.SelfSubjectRulesReview{}), "no namespace on request",
		},
		"a subject without an authorizer":      {none.subject, known, call("", subject), noRules},
		"a local review without an authorizer": {none.local, known, call("default", local), noRules},
		"a self review without an authorizer":  {none.self, known, call("", self), noRules},
		"rules without an authorizer":          {none.selfRules, known, call("", selfRules), noRules},
		"a subject that admission rejects":     {r.subject, known, refused(subject), "refused"},
		"a local review admission rejects":     {r.local, known, refused(local), "refused"},
		"a self review that admission rejects": {r.self, known, refused(self), "refused"},
		"rules that admission rejects":         {r.selfRules, known, refused(selfRules), "refused"},
	} {
		if _, err := test.review(test.ctx, test.call); err == nil || err.Error() != test.want {
			t.Errorf("%s: got %v, want %s", name, err, test.want)
		}
	}
}

// TestFieldRequirementsAreBounded: all reviews limit the requirements of field selectors.
func TestFieldRequirementsAreBounded(t *testing.T) {
	t.Parallel()
	attributes := pods("list")
	attributes.FieldSelector = &api.FieldSelectorAttributes{
		Requirements: make([]metav1.FieldSelectorRequirement, maxRequirements+1),
	}
	spec := api.SubjectAccessReviewSpec{User: "joe", ResourceAttributes: attributes}
	r := reviewer{}
	for name, review := range map[string]func() (runtime.Object, error){
		"SubjectAccessReview": func() (runtime.Object, error) {
			return r.subject(requestContext(t), call("", &api.SubjectAccessReview{Spec: spec}))
		},
		"LocalSubjectAccessReview": func() (runtime.Object, error) {
			return r.local(requestContext(t), call("default", &api.LocalSubjectAccessReview{Spec: spec}))
		},
	} {
		const want = `.authorization.k8s.io "" is invalid: spec.resourceAttributes.fieldSelector.requirements: Too many: 1001: must have at most ` +
			"1000 items"
		if _, err := review(); !apierrors.IsInvalid(err) || err.Error() != want {
			t.Errorf("%s: got %v, want %s", name, err, want)
		}
	}
}
