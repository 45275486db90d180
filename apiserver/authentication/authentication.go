// Package authentication determines the user of a request: from a front proxy's headers, a client certificate or a
// bearer token, or the anonymous user.
//
// A client certificate is verified once per connection, and again only when the authorities change or the certificate
// expires. The result of a token is cached for a short time, for all connections.
package authentication

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/utils/clock"
)

// Options configure an Authenticator. Methods whose field is empty are disabled.
type Options struct {
	Clients    *Authority            // of client certificates
	FrontProxy func() *FrontProxy    // the current one; nil: there is none
	Tokens     []authenticator.Token // tried in order
	TokenLife  time.Duration         // how long a valid token is cached; 0: not at all
	Audiences  []string              // of this server; tokens must have one of them
	Anonymous  bool                  // requests without credentials are from system:anonymous
	// AnonymousPaths are the only paths of anonymous requests; empty: all.
	AnonymousPaths []string

	// Webhook authenticates tokens last. Its results, valid or not, are cached for WebhookLife.
	Webhook     authenticator.Token
	WebhookLife time.Duration

	Clock      clock.PassiveClock
	Registerer prometheus.Registerer
}

// Authenticator authenticates requests in kube-apiserver's order: front proxy, certificate, token, anonymous. An
// invalid credential is an error unless another one is valid. It implements authenticator.Request.
type Authenticator struct {
	options Options
	tokens  *Tokens
	metrics *metrics
}

// New returns an authenticator.
func New(options Options) *Authenticator {
	a := &Authenticator{options: options, metrics: newMetrics(options.Registerer)}
	tokens := slices.Clone(options.Tokens)
	caches := newCacheMetrics(options.Registerer)
	if options.Webhook != nil {
		tokens = append(tokens, newTokenCache(options.Webhook, cacheOptions{
			validLife: options.WebhookLife, invalidLife: options.WebhookLife, clock: options.Clock, metrics: caches,
		}))
	}
	if len(tokens) > 0 {
		a.tokens = newTokens(tokens, options.TokenLife, options.Clock, caches)
	}
	return a
}

// AuthenticateRequest implements authenticator.Request.
func (a *Authenticator) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	connection := connectionOf(r.Context())
	if connection.local != nil {
		return connection.local, true, nil
	}
	var errs []error
	if a.options.FrontProxy != nil {
		response, err := a.frontProxy(r, connection)
		if response != nil {
			return response, true, nil
		}
		errs = appendError(errs, err)
	}
	if a.options.Clients != nil {
		response, err := a.clientCertificate(r, connection)
		if response != nil {
			return response, true, nil
		}
		errs = appendError(errs, err)
	}
	if a.tokens != nil {
		response, err := a.token(r)
		if response != nil {
			return response, true, nil
		}
		errs = appendError(errs, err)
	}
	if len(errs) > 0 {
		return nil, false, utilerrors.NewAggregate(errs)
	}
	if a.options.Anonymous && (len(a.options.AnonymousPaths) == 0 || slices.Contains(a.options.AnonymousPaths, r.URL.Path)) {
		return &anonymous, true, nil
	}
	return nil, false, nil
}

// Flush drops the cached results of tokens.
func (a *Authenticator) Flush() {
	if a.tokens != nil {
		a.tokens.Flush()
	}
}

// token authenticates the bearer token in a request's Authorization header or WebSocket protocols.
func (a *Authenticator) token(r *http.Request) (*authenticator.Response, error) {
	token, protocols, err := tokenOf(r)
	if err != nil || token == "" {
		return nil, err
	}
	ctx := r.Context()
	audiences, given := authenticator.AudiencesFrom(ctx)
	if !given && len(a.options.Audiences) > 0 {
		audiences = a.options.Audiences
		ctx = authenticator.WithAudiences(ctx, audiences)
	}
	response, ok, err := a.tokens.AuthenticateToken(ctx, token)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, errors.New("invalid bearer token")
	}
	if len(audiences) > 0 && len(response.Audiences) > 0 && len(audiences.Intersect(response.Audiences)) == 0 {
		return nil, errors.New("the token is for another audience")
	}
	if protocols != "" {
		r.Header.Set(protocolHeader, protocols)
	}
	r.Header.Del("Authorization")
	return response, nil
}

// Tokens returns the authenticator of tokens for TokenReview, or nil if there is none.
func (a *Authenticator) Tokens() *Tokens { return a.tokens }

var anonymous = authenticator.Response{
	User: &user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.AllUnauthenticated}},
}

// authenticated returns the response with the group system:authenticated.
func authenticated(response *authenticator.Response) *authenticator.Response {
	who := response.User
	groups := who.GetGroups()
	if who.GetName() == user.Anonymous || slices.Contains(groups, user.AllAuthenticated) || slices.Contains(groups, user.AllUnauthenticated) {
		return response
	}
	return &authenticator.Response{
		Audiences: response.Audiences,
		User: &user.DefaultInfo{
			Name: who.GetName(), UID: who.GetUID(), Extra: who.GetExtra(),
			Groups: append(slices.Clone(groups), user.AllAuthenticated),
		},
	}
}

func appendError(errs []error, err error) []error {
	if err == nil {
		return errs
	}
	return append(errs, err)
}

var _ authenticator.Request = (*Authenticator)(nil)

// Local returns a context whose requests are authenticated as the given user, for requests of the server to itself.
func Local(ctx context.Context, who user.Info) context.Context {
	return context.WithValue(ctx, connectionKey{}, &connection{local: authenticated(&authenticator.Response{User: who})})
}
