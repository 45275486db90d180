package host

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	tokencache "k8s.io/apiserver/pkg/authentication/token/cache"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/authorization/path"
	tokenwebhook "k8s.io/apiserver/plugin/pkg/authenticator/token/webhook"

	"quorate.dev/apiserver/authorization"
)

// Tokens returns the authenticator of bearer tokens. It sends TokenReviews to the host, whose results are cached for
// ttl in a cache of bounded size. The requests are counted in the metrics of the process.
func (c *Cluster) Tokens(ttl time.Duration) (authenticator.Token, error) {
	authenticatorfactory.RegisterMetrics()
	metrics := tokenwebhook.AuthenticatorMetrics{
		RecordRequestTotal:   authenticatorfactory.RecordRequestTotal,
		RecordRequestLatency: authenticatorfactory.RecordRequestLatency,
	}
	reviews, err := tokenwebhook.NewFromInterface(
		c.authentication.AuthenticationV1(), nil, *retryBackoff(), requestTimeout, metrics)
	if err != nil {
		return nil, fmt.Errorf("prepare TokenReviews of the host: %w", err)
	}
	return tokencache.New(reviews, false, ttl, ttl), nil
}

// Authorization configures the authorizer of an extension server.
type Authorization struct {
	AlwaysAllowPaths               []string
	AuthorizedTTL, UnauthorizedTTL time.Duration
}

// Authorizer returns the authorizer of an extension server. It allows all requests of members of system:masters and all
// requests for AlwaysAllowPaths, and denies requests for CustomResourceDefinitions. SubjectAccessReviews of the host
// decide all other requests; their results are cached in a cache of bounded size.
func (c *Cluster) Authorizer(options Authorization) (*authorization.Authorizer, error) {
	paths, err := path.NewAuthorizer(options.AlwaysAllowPaths)
	if err != nil {
		return nil, fmt.Errorf("--authorization-always-allow-paths: %w", err)
	}
	reviews, err := authorizerfactory.DelegatingAuthorizerConfig{
		SubjectAccessReviewClient: c.authorization.AuthorizationV1(),
		AllowCacheTTL:             options.AuthorizedTTL,
		DenyCacheTTL:              options.UnauthorizedTTL,
		WebhookRetryBackoff:       retryBackoff(),
	}.New()
	if err != nil {
		return nil, fmt.Errorf("prepare SubjectAccessReviews of the host: %w", err)
	}
	return authorization.Of(
		authorization.Named{Name: "kubernetes.io/always-allow-paths", Mode: withoutRules{paths}},
		authorization.Named{
			Name: "quorate.dev/administration", Mode: withoutRules{authorizer.AuthorizerFunc(administration)},
		},
		authorization.Named{Name: "kubernetes.io/webhook", Mode: withoutRules{reviews}},
	), nil
}

// administration denies requests for CustomResourceDefinitions. The host would decide them by the permissions for its
// own CustomResourceDefinitions.
func administration(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.IsResourceRequest() && a.GetAPIGroup() == apiextensions.GroupName {
		const reason = "only members of " + user.SystemPrivilegedGroup + " administer an extension server"
		return authorizer.DecisionDeny, reason, nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

// withoutRules implements authorization.Mode for an authorizer without rules. An extension server does not serve
// SelfSubjectRulesReviews.
type withoutRules struct {
	authorizer.UnconditionalAuthorizer
}

// RulesFor implements authorizer.RuleResolver.
func (withoutRules) RulesFor(
	context.Context, user.Info, string,
) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	return nil, nil, true, errors.New("the host has the rules")
}
