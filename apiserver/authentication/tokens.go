package authentication

import (
	"context"
	"sync/atomic"
	"time"

	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/utils/clock"
)

// Tokens tries authenticators in order and caches the results for valid tokens. It implements authenticator.Token.
type Tokens struct {
	authenticators []authenticator.Token
	options        cacheOptions
	// cache is replaced by Flush. A result is stored in the cache that was current when its authentication started.
	cache atomic.Pointer[tokenCache]
}

func newTokens(
	authenticators []authenticator.Token, life time.Duration, c clock.PassiveClock, m *cacheMetrics,
) *Tokens {
	t := &Tokens{authenticators: authenticators, options: cacheOptions{validLife: life, clock: c, metrics: m}}
	t.Flush()
	return t
}

// AuthenticateToken implements authenticator.Token.
func (t *Tokens) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	return t.cache.Load().AuthenticateToken(ctx, token)
}

// Flush drops all cached results. After Flush has returned, no result of an authentication that started earlier is used
// for a new request.
func (t *Tokens) Flush() {
	t.cache.Store(newTokenCache(inOrder(t.authenticators), t.options))
}

// inOrder tries authenticators in order until one accepts the token. If none does, it returns the errors of all.
type inOrder []authenticator.Token

// AuthenticateToken implements authenticator.Token.
func (u inOrder) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	var errs []error
	for _, next := range u {
		response, ok, err := next.AuthenticateToken(ctx, token)
		if ok && err == nil {
			return authenticated(response), true, nil
		}
		errs = appendError(errs, err)
	}
	return nil, false, utilerrors.NewAggregate(errs)
}

var _ authenticator.Token = (*Tokens)(nil)
