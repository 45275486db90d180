// Package authentication defines the reviews of the API group authentication.k8s.io.
package authentication

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	api "k8s.io/kubernetes/pkg/apis/authentication"
	_ "k8s.io/kubernetes/pkg/apis/authentication/install"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/builtin/definition"
	"quorate.dev/apiserver/resource"
)

// Options are the dependencies of the reviews.
type Options struct {
	// Tokens authenticates the token of a TokenReview; nil rejects all tokens.
	Tokens authenticator.Token
	// Audiences are the audiences of this server, the default audiences of a TokenReview.
	Audiences authenticator.Audiences
	Clock     clock.PassiveClock
}

// Definitions returns the kinds of the group.
func Definitions(builder *definition.Builder, options Options) []*resource.Definition {
	group := builder.Group("authentication.k8s.io", "v1")
	return []*resource.Definition{
		group.DefineAction("SelfSubjectReview", false, selfReviewer{options.Clock}.review),
		group.DefineAction("TokenReview", false, tokenReviewer{options.Tokens, options.Audiences}.review),
	}
}

type selfReviewer struct{ clock clock.PassiveClock }

func (r selfReviewer) review(ctx context.Context, call resource.Call) (runtime.Object, error) {
	if err := call.Validate(ctx); err != nil {
		return nil, err
	}
	self, ok := request.UserFrom(ctx)
	if !ok {
		return nil, apierrors.NewBadRequest("no user present on request")
	}
	return &api.SelfSubjectReview{
		ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(r.clock.Now())},
		Status:     api.SelfSubjectReviewStatus{UserInfo: userInfo(self)},
	}, nil
}

type tokenReviewer struct {
	tokens    authenticator.Token
	audiences authenticator.Audiences
}

func (r tokenReviewer) review(ctx context.Context, call resource.Call) (runtime.Object, error) {
	review := call.Body.(*api.TokenReview)
	if review.Spec.Token == "" {
		return nil, apierrors.NewBadRequest("token is required for TokenReview in authentication")
	}
	if err := call.Validate(ctx); err != nil {
		return nil, err
	}
	if r.tokens == nil {
		return review, nil
	}
	audiences := authenticator.Audiences(review.Spec.Audiences)
	if len(audiences) == 0 {
		audiences = r.audiences
	}
	if len(audiences) > 0 {
		ctx = authenticator.WithAudiences(ctx, audiences)
	}
	response, authenticated, err := r.tokens.AuthenticateToken(ctx, review.Spec.Token)
	review.Status = api.TokenReviewStatus{Authenticated: authenticated}
	if err != nil || !authenticated {
		// kube-apiserver's first authenticator, for its loopback token, also rejects the token.
		review.Status.Error = utilerrors.NewAggregate([]error{errInvalidToken, err}).Error()
	}
	if response == nil || response.User == nil {
		return review, nil
	}
	if len(audiences) > 0 && len(audiences.Intersect(response.Audiences)) == 0 {
		return nil, apierrors.NewInternalError(errors.New("error validating audiences"))
	}
	review.Status.User = userInfo(response.User)
	review.Status.Audiences = response.Audiences
	return review, nil
}

// errInvalidToken has kube-apiserver's text for unknown tokens.
var errInvalidToken = errors.New("invalid bearer token")

func userInfo(u user.Info) api.UserInfo {
	info := api.UserInfo{
		Username: u.GetName(), UID: u.GetUID(), Groups: u.GetGroups(), Extra: map[string]api.ExtraValue{},
	}
	for key, values := range u.GetExtra() {
		info.Extra[key] = values
	}
	return info
}
