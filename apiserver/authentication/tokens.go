package authentication

import (
	"context"
	"crypto/sha256"
	"sync"
	"time"

	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/utils/clock"
)

// maxTokens is the maximum size of the cache. When it is full, the expired entries are dropped, then all.
const maxTokens = 32 * 1024

// Tokens tries authenticators in order and caches the results of valid tokens. It implements authenticator.Token.
type Tokens struct {
	authenticators []authenticator.Token
	life           time.Duration
	clock          clock.PassiveClock

	mu    sync.RWMutex
	known map[[sha256.Size]byte]knownToken // by hash, so that no tokens are kept in memory
}

type knownToken struct {
	response *authenticator.Response
	warnings []tokenWarning
	until    time.Time
}

type tokenWarning struct{ agent, text string }

func newTokens(authenticators []authenticator.Token, life time.Duration, c clock.PassiveClock) *Tokens {
	return &Tokens{authenticators: authenticators, life: life, clock: c, known: make(map[[sha256.Size]byte]knownToken)}
}

// AuthenticateToken implements authenticator.Token.
func (t *Tokens) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	key := hashOf(ctx, token)
	now := t.clock.Now()
	t.mu.RLock()
	known, found := t.known[key]
	t.mu.RUnlock()
	if !found || !now.Before(known.until) {
		recorder := &warningsOfToken{}
		response, ok, err := t.ask(warning.WithWarningRecorder(ctx, recorder), token)
		if !ok || err != nil {
			return nil, false, err
		}
		known = knownToken{response: response, warnings: recorder.warnings, until: now.Add(t.life)}
		t.keep(key, known, now)
	}
	for _, w := range known.warnings {
		warning.AddWarning(ctx, w.agent, w.text)
	}
	return known.response, true, nil
}

// ask tries the authenticators in order.
func (t *Tokens) ask(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	var errs []error
	for _, next := range t.authenticators {
		response, ok, err := next.AuthenticateToken(ctx, token)
		if ok && err == nil {
			return authenticated(response), true, nil
		}
		errs = appendError(errs, err)
	}
	return nil, false, utilerrors.NewAggregate(errs)
}

func (t *Tokens) keep(key [sha256.Size]byte, token knownToken, now time.Time) {
	if t.life <= 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.known) >= maxTokens {
		for k, v := range t.known {
			if !now.Before(v.until) {
				delete(t.known, k)
			}
		}
		if len(t.known) >= maxTokens {
			clear(t.known)
		}
	}
	t.known[key] = token
}

// hashOf returns a hash of a token and the requested audiences.
func hashOf(ctx context.Context, token string) [sha256.Size]byte {
	audiences, _ := authenticator.AudiencesFrom(ctx)
	if len(audiences) == 0 {
		return sha256.Sum256([]byte(token))
	}
	text := make([]byte, 0, len(token)+128)
	for _, audience := range audiences {
		text = append(append(text, audience...), 0)
	}
	return sha256.Sum256(append(text, token...))
}

// warningsOfToken records the warnings of authenticators, so that they can be repeated for a cached result.
type warningsOfToken struct{ warnings []tokenWarning }

func (w *warningsOfToken) AddWarning(agent, text string) {
	w.warnings = append(w.warnings, tokenWarning{agent, text})
}

var _ authenticator.Token = (*Tokens)(nil)
