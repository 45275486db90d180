// Package authorization defines the reviews of the API group authorization.k8s.io.
package authorization

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	api "k8s.io/kubernetes/pkg/apis/authorization"
	_ "k8s.io/kubernetes/pkg/apis/authorization/install"
	"k8s.io/kubernetes/pkg/apis/authorization/validation"
	authorizationutil "k8s.io/kubernetes/pkg/registry/authorization/util"

	"quorate.dev/apiserver/builtin/definition"
	"quorate.dev/apiserver/request"
	"quorate.dev/apiserver/resource"
)

// Definitions returns the kinds of the group.
func Definitions(
	builder *definition.Builder, authorizer authorizer.UnconditionalAuthorizer, rules authorizer.RuleResolver,
) []*resource.Definition {
	group := builder.Group("authorization.k8s.io", "v1")
	r := reviewer{authorizer, rules}
	return []*resource.Definition{
		group.DefineAction("LocalSubjectAccessReview", true, r.local),
		group.DefineAction("SelfSubjectAccessReview", false, r.self),
		group.DefineAction("SelfSubjectRulesReview", false, r.selfRules),
		group.DefineAction("SubjectAccessReview", false, r.subject),
	}
}

type reviewer struct {
	authorizer authorizer.UnconditionalAuthorizer
	rules      authorizer.RuleResolver
}

func (r reviewer) subject(ctx context.Context, call resource.Call) (runtime.Object, error) {
	review := call.Body.(*api.SubjectAccessReview)
	if err := checkRequirements(review.Spec.ResourceAttributes); err != nil {
		return nil, err
	}
	if err := invalid(validation.ValidateSubjectAccessReviewCreate(ctx, legacyscheme.Scheme, review)); err != nil {
		return nil, err
	}
	if err := call.Validate(ctx); err != nil {
		return nil, err
	}
	var err error
	review.Status, err = r.decide(ctx, review.Spec)
	return review, err
}

func (r reviewer) local(ctx context.Context, call resource.Call) (runtime.Object, error) {
	review := call.Body.(*api.LocalSubjectAccessReview)
	if err := checkRequirements(review.Spec.ResourceAttributes); err != nil {
		return nil, err
	}
	if err := invalid(validation.ValidateLocalSubjectAccessReviewCreate(ctx, legacyscheme.Scheme, review)); err != nil {
		return nil, err
	}
	switch call.Namespace {
	case "":
		return nil, apierrors.NewBadRequest("namespace is required on this type: ")
	case review.Namespace:
	default:
		return nil, apierrors.NewBadRequest("spec.resourceAttributes.namespace must match namespace: " + call.Namespace)
	}
	if err := call.Validate(ctx); err != nil {
		return nil, err
	}
	var err error
	review.Status, err = r.decide(ctx, review.Spec)
	return review, err
}

func (r reviewer) self(ctx context.Context, call resource.Call) (runtime.Object, error) {
	review := call.Body.(*api.SelfSubjectAccessReview)
	if err := checkRequirements(review.Spec.ResourceAttributes); err != nil {
		return nil, err
	}
	if err := invalid(validation.ValidateSelfSubjectAccessReviewCreate(ctx, legacyscheme.Scheme, review)); err != nil {
		return nil, err
	}
	self, ok := genericrequest.UserFrom(ctx)
	if !ok {
		return nil, apierrors.NewBadRequest("no user present on request")
	}
	if err := call.Validate(ctx); err != nil {
		return nil, err
	}
	spec := api.SubjectAccessReviewSpec{
		ResourceAttributes: review.Spec.ResourceAttributes, NonResourceAttributes: review.Spec.NonResourceAttributes,
		User: self.GetName(), UID: self.GetUID(), Groups: self.GetGroups(), Extra: map[string]api.ExtraValue{},
	}
	for key, values := range self.GetExtra() {
		spec.Extra[key] = values
	}
	var err error
	review.Status, err = r.decide(ctx, spec)
	return review, err
}

func (r reviewer) selfRules(ctx context.Context, call resource.Call) (runtime.Object, error) {
	review := call.Body.(*api.SelfSubjectRulesReview)
	self, ok := genericrequest.UserFrom(ctx)
	if !ok {
		return nil, apierrors.NewBadRequest("no user present on request")
	}
	if review.Spec.Namespace == "" {
		return nil, apierrors.NewBadRequest("no namespace on request")
	}
	if err := call.Validate(ctx); err != nil {
		return nil, err
	}
	if r.rules == nil {
		return nil, noAuthorizer()
	}
	resources, paths, incomplete, err := r.rules.RulesFor(ctx, self, review.Spec.Namespace)
	answer := &api.SelfSubjectRulesReview{Status: api.SubjectRulesReviewStatus{
		ResourceRules:    resourceRules(resources),
		NonResourceRules: pathRules(paths),
		Incomplete:       incomplete,
	}}
	if err != nil {
		answer.Status.EvaluationError = err.Error()
	}
	return answer, nil
}

func (r reviewer) decide(ctx context.Context, spec api.SubjectAccessReviewSpec) (api.SubjectAccessReviewStatus, error) {
	if r.authorizer == nil {
		return api.SubjectAccessReviewStatus{}, noAuthorizer()
	}
	attributes := authorizationutil.AuthorizationAttributesFrom(spec)
	decision, reason, err := r.authorizer.Authorize(ctx, attributes)
	return api.SubjectAccessReviewStatus{
		Allowed:         decision == authorizer.DecisionAllow,
		Denied:          decision == authorizer.DecisionDeny,
		Reason:          reason,
		EvaluationError: authorizationutil.BuildEvaluationError(err, attributes),
	}, nil
}

func noAuthorizer() error {
	return apierrors.NewInternalError(errors.New("no authorizer for reviews"))
}

// maxRequirements is the maximum number of requirements in a selector, as in lists. kube-apiserver has no limit and
// evaluates invalid requirements in a time that grows with the square of their number.
const maxRequirements = 1000

// checkRequirements returns an error if a selector of a review has more than maxRequirements requirements.
func checkRequirements(attributes *api.ResourceAttributes) error {
	if attributes == nil {
		return nil
	}
	path := field.NewPath("spec", "resourceAttributes")
	var errs field.ErrorList
	if labels := attributes.LabelSelector; labels != nil && len(labels.Requirements) > maxRequirements {
		errs = append(errs,
			field.TooMany(path.Child("labelSelector", "requirements"), len(labels.Requirements), maxRequirements))
	}
	if fields := attributes.FieldSelector; fields != nil && len(fields.Requirements) > maxRequirements {
		errs = append(errs,
			field.TooMany(path.Child("fieldSelector", "requirements"), len(fields.Requirements), maxRequirements))
	}
	return invalid(errs)
}

// invalid returns nil if errs is empty. The error has an empty kind, like kube-apiserver's.
func invalid(errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}
	return request.Invalid(api.Kind(""), "", errs)
}

func resourceRules(infos []authorizer.ResourceRuleInfo) []api.ResourceRule {
	rules := make([]api.ResourceRule, len(infos))
	for i, info := range infos {
		rules[i] = api.ResourceRule{
			Verbs: info.GetVerbs(), APIGroups: info.GetAPIGroups(),
			Resources: info.GetResources(), ResourceNames: info.GetResourceNames(),
		}
	}
	return rules
}

func pathRules(infos []authorizer.NonResourceRuleInfo) []api.NonResourceRule {
	rules := make([]api.NonResourceRule, len(infos))
	for i, info := range infos {
		rules[i] = api.NonResourceRule{Verbs: info.GetVerbs(), NonResourceURLs: info.GetNonResourceURLs()}
	}
	return rules
}
