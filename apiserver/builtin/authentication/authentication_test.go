package authentication_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	api "k8s.io/kubernetes/pkg/apis/authentication"
	testingclock "k8s.io/utils/clock/testing"

	"quorate.dev/apiserver/builtin/authentication"
	"quorate.dev/apiserver/builtin/builtintest"
	"quorate.dev/apiserver/resource"
)

func TestServed(t *testing.T) {
	t.Parallel()
	builtintest.CheckServed(t, authentication.Definitions(builtintest.NewBuilder(), authentication.Options{}),
		[]builtintest.Served{
			{
				Resource: "selfsubjectreviews", Kind: "SelfSubjectReview", Versions: "v1", Verbs: "create",
			},
			{
				Resource: "tokenreviews", Kind: "TokenReview", Versions: "v1", Verbs: "create",
			},
		})
}

// tokens authenticates tokens by their text, for the audience "api" and the first audience of the request.
func tokens(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	asked, _ := authenticator.AudiencesFrom(ctx)
	switch token {
	case "janes":
		jane := &user.DefaultInfo{
			Name: "jane", UID: "1", Groups: []string{"team"}, Extra: map[string][]string{"scope": {"all"}},
		}
		return &authenticator.Response{User: jane, Audiences: asked.Intersect(authenticator.Audiences{"api"})}, true, nil
	case "expired":
		return nil, false, errors.New("the token has expired")
	}
	return nil, false, nil
}

func now() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) }

// review calls the action of a resource with a body that admission allows, unless refused is set.
func review(
	ctx context.Context, t *testing.T, options authentication.Options, plural string, body runtime.Object, refused error,
) (runtime.Object, error) {
	t.Helper()
	options.Clock = testingclock.NewFakePassiveClock(now())
	target := builtintest.FindTarget(t, authentication.Definitions(builtintest.NewBuilder(), options), plural, "")
	return target.Endpoint.Action(ctx, resource.Call{
		Body: body, Validate: func(context.Context) error { return refused },
	})
}

// options returns the options of a server with the audience "api".
func options() authentication.Options {
	return authentication.Options{
		Tokens: authenticator.TokenFunc(tokens), Audiences: authenticator.Audiences{"api"},
	}
}

func TestTokenReview(t *testing.T) {
	t.Parallel()
	jane := api.UserInfo{
		Username: "jane", UID: "1", Groups: []string{"team"}, Extra: map[string]api.ExtraValue{"scope": {"all"}},
	}
	for name, test := range map[string]struct {
		spec    api.TokenReviewSpec
		options authentication.Options
		want    api.TokenReviewStatus
	}{
		"a token for the server": {
			api.TokenReviewSpec{Token: "janes"}, options(),
			api.TokenReviewStatus{Authenticated: true, User: jane, Audiences: []string{"api"}},
		},
		"a token for two audiences": {
			api.TokenReviewSpec{Token: "janes", Audiences: []string{"vault", "api"}}, options(),
			api.TokenReviewStatus{Authenticated: true, User: jane, Audiences: []string{"api"}},
		},
		"an unknown token": {
			api.TokenReviewSpec{Token: "guess"}, options(), api.TokenReviewStatus{Error: "invalid bearer token"},
		},
		"an expired token": {
			api.TokenReviewSpec{Token: "expired"}, options(),
			api.TokenReviewStatus{Error: "[invalid bearer token, the token has expired]"},
		},
		"a server without tokens": {
			api.TokenReviewSpec{Token: "janes"}, authentication.Options{}, api.TokenReviewStatus{},
		},
		"a server without audiences": {
			api.TokenReviewSpec{Token: "janes"}, authentication.Options{Tokens: authenticator.TokenFunc(tokens)},
			api.TokenReviewStatus{Authenticated: true, User: jane},
		},
	} {
		response, err := review(t.Context(), t, test.options, "tokenreviews", &api.TokenReview{Spec: test.spec}, nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got := response.(*api.TokenReview).Status
		if len(got.Audiences) == 0 {
			got.Audiences = nil
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s: the status differs (-want +got):\n%s", name, diff)
		}
	}
}

func TestSelfReview(t *testing.T) {
	t.Parallel()
	ctx := request.WithUser(t.Context(), &user.DefaultInfo{
		Name: "jane", UID: "1", Groups: []string{"team"}, Extra: map[string][]string{"scope": {"all"}},
	})
	response, err := review(ctx, t, options(), "selfsubjectreviews", &api.SelfSubjectReview{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := &api.SelfSubjectReview{
		ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(now())},
		Status: api.SelfSubjectReviewStatus{UserInfo: api.UserInfo{
			Username: "jane", UID: "1", Groups: []string{"team"}, Extra: map[string]api.ExtraValue{"scope": {"all"}},
		}},
	}
	if diff := cmp.Diff(want, response); diff != "" {
		t.Errorf("the review differs (-want +got):\n%s", diff)
	}
}

func TestRejectedReviews(t *testing.T) {
	t.Parallel()
	refused := errors.New("refused")
	known := builtintest.WithUser(t.Context(), "jane")
	for name, test := range map[string]struct {
		ctx     context.Context
		plural  string
		body    runtime.Object
		refused error
		want    string
	}{
		"no token": {known, "tokenreviews", &api.TokenReview{}, nil, "token is required for TokenReview in authentication"},
		"a token for others": {
			known, "tokenreviews",
			&api.TokenReview{Spec: api.TokenReviewSpec{Token: "janes", Audiences: []string{"vault"}}}, nil,
			"Internal error occurred: error validating audiences",
		},
		"a token review that admission rejects": {
			known, "tokenreviews", &api.TokenReview{Spec: api.TokenReviewSpec{Token: "janes"}}, refused, "refused",
		},
		"a self review that admission rejects": {known, "selfsubjectreviews", &api.SelfSubjectReview{}, refused, "refused"},
		"an unknown client": {
			t.Context(), "selfsubjectreviews", &api.SelfSubjectReview{}, nil, "no user present on request",
		},
	} {
		if _, err := review(test.ctx, t, options(), test.plural, test.body, test.refused); err == nil ||
			err.Error() != test.want {
			t.Errorf("%s: got %v, want %s", name, err, test.want)
		}
	}
}

// TestAudiencesOfReview: the authenticator gets the audiences of the review, or else the server's.
func TestAudiencesOfReview(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ asked, want []string }{
		{nil, []string{"api"}}, {[]string{"a", "b"}, []string{"a", "b"}},
	} {
		var got authenticator.Audiences
		opts := options()
		opts.Tokens = authenticator.TokenFunc(func(ctx context.Context, _ string) (*authenticator.Response, bool, error) {
			got, _ = authenticator.AudiencesFrom(ctx)
			return nil, false, nil
		})
		body := &api.TokenReview{Spec: api.TokenReviewSpec{Token: "x", Audiences: test.asked}}
		if _, err := review(t.Context(), t, opts, "tokenreviews", body, nil); err != nil || !slices.Equal(got, test.want) {
			t.Errorf("audiences %v: got %v, %v, want %v", test.asked, got, err, test.want)
		}
	}
}
