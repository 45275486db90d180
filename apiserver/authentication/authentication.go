// Package authentication determines the user of a request: from the headers of a front proxy, a client certificate or
// a bearer token; otherwise the user is anonymous.
//
// A client certificate is verified once for each connection. It is verified again when the authorities or the
// configuration of the front proxy change, when the certificate expires, and 10 seconds after it could not be
// verified. The result of a token is cached for a short time, for all connections.
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

// Options configures an Authenticator. An authentication method whose field is nil or empty is disabled.
type Options struct {
	// Clients has the certificate authorities of client certificates.
	Clients *Authority
	// FrontProxy returns the current front proxy, or nil if there is none.
	FrontProxy func() *FrontProxy
	// Tokens authenticate bearer tokens and are tried in order.
	Tokens []authenticator.Token
	// TokenLife is the time for which the result of a valid token is cached; 0 disables the cache.
	TokenLife time.Duration
	// Audiences has the audiences of this server. A token that lists audiences must list at least one audience of this
	// server.
	Audiences []string
	// Anonymous is set if requests without credentials are from system:anonymous.
	Anonymous bool
	// AnonymousPaths are the only paths on which anonymous requests are allowed; empty means all paths.
	AnonymousPaths []string

	// Webhook authenticates tokens after all others. Its results, for valid and for invalid tokens, are cached for
	// WebhookLife.
	Webhook     authenticator.Token
	WebhookLife time.Duration

	Clock      clock.PassiveClock
	Registerer prometheus.Registerer
}

// Authenticator authenticates requests in kube-apiserver's order: front proxy, client certificate, token, anonymous. An
// invalid credential is an error, unless the request also has a valid one. Authenticator implements
// authenticator.Request.
type Authenticator struct {
	options Options
	tokens  *Tokens
	metrics *certificateMetrics
}

// New returns an authenticator with the enabled methods.
func New(options Options) *Authenticator {
	a := &Authenticator{options: options, metrics: newCertificateMetrics(options.Registerer)}
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
	if a.options.Anonymous &&
		(len(a.options.AnonymousPaths) == 0 || slices.Contains(a.options.AnonymousPaths, r.URL.Path)) {
		response := anonymous
		return &response, true, nil
	}
	return nil, false, nil
}

// Flush drops all cached results of tokens.
func (a *Authenticator) Flush() {
	if a.tokens != nil {
		a.tokens.Flush()
	}
}

// token authenticates the bearer token in the Authorization header or in the WebSocket protocols of a request.
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

// Tokens returns the authenticator of bearer tokens, which TokenReviews use, or nil if there is none.
func (a *Authenticator) Tokens() *Tokens { return a.tokens }

var anonymous = authenticator.Response{
	User: &user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.AllUnauthenticated}},
}

// authenticated returns the response with the group system:authenticated, unless the user is anonymous.
func authenticated(response *authenticator.Response) *authenticator.Response {
	who := response.User
	groups := who.GetGroups()
	if who.GetName() == user.Anonymous || slices.Contains(groups, user.AllAuthenticated) ||
		slices.Contains(groups, user.AllUnauthenticated) {
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

// Local returns a context for the server's requests to itself. They are authenticated as the given user without
// credentials.
func Local(ctx context.Context, who user.Info) context.Context {
	return context.WithValue(ctx, connectionKey{}, &connection{local: authenticated(&authenticator.Response{User: who})})
}
