package authorization

import (
	"context"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"
	api "k8s.io/kubernetes/pkg/apis/authorization"

	"quorate.dev/apiserver/resource"
)

// TestRequirementsAreBounded: a review with more requirements than a list may have is invalid, without evaluating them.
func TestRequirementsAreBounded(t *testing.T) {
	r := reviewer{authorizer: authorizerfactory.NewAlwaysAllowAuthorizer()}
	ctx := genericrequest.WithUser(requestContext(t), &user.DefaultInfo{Name: "alice"})
	call := func(number int) error {
		requirements := make([]metav1.LabelSelectorRequirement, number)
		for i := range requirements {
			requirements[i] = metav1.LabelSelectorRequirement{Key: "invalid key", Operator: "Nope"}
		}
		_, err := r.self(ctx, resource.Call{
			Body: &api.SelfSubjectAccessReview{Spec: api.SelfSubjectAccessReviewSpec{ResourceAttributes: &api.ResourceAttributes{
				Verb: "list", Resource: "pods", LabelSelector: &api.LabelSelectorAttributes{Requirements: requirements},
			}}},
			Validate: func(context.Context) error { return nil },
		})
		return err
	}
	if err := call(maxRequirements); !apierrors.IsInvalid(err) ||
		!strings.HasSuffix(err.Error(), "(100 shown of 1000 errors)") {
		t.Errorf("%d requirements: want the first hundred errors", maxRequirements)
	}
	err := call(maxRequirements + 1)
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "must have at most 1000 items") {
		t.Errorf("%d requirements: %v", maxRequirements+1, err)
	}
}
