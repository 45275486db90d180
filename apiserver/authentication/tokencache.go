package authentication

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/utils/clock"
)

// These are the maximum numbers of cached results. Results of invalid tokens are stored separately, in a smaller set,
// so that a client that sends random tokens neither fills memory nor evicts the results of valid tokens.
const (
	maxValidTokens   = 32 * 1024
	maxInvalidTokens = 4 * 1024
)

// sharedTimeout bounds an authentication that several requests share, as in kube-apiserver.
const sharedTimeout = 30 * time.Second

// errCrashed is the error of an authenticator that has panicked.
var errCrashed = errors.New("authentication failed unexpectedly")

type cacheOptions struct {
	// validLife is the time for which results with a user are cached; 0 means that they are not cached.
	validLife time.Duration
	// invalidLife is the time for which results without a user and without an error are cached; 0 means that they are
	// not cached.
	invalidLife time.Duration
	clock       clock.PassiveClock
	metrics     *cacheMetrics
}

// tokenCache caches the results of a token authenticator. Concurrent requests with the same token share one
// authentication. Errors are not cached. tokenCache implements authenticator.Token.
type tokenCache struct {
	authenticator authenticator.Token
	options       cacheOptions
	// hashes is a pool of hash.Hash with a random key, so that clients cannot construct tokens with equal hashes.
	hashes  sync.Pool
	valid   results
	invalid results
	running singleflight.Group
}

// tokenKey is a hash of a token and the requested audiences. The cache stores no tokens.
type tokenKey [sha256.Size]byte

// tokenResult is the result of an authentication and its side effects, which are repeated for each request with a
// valid token.
type tokenResult struct {
	// response is nil if the token is not valid.
	response *authenticator.Response
	err      error
	warnings []tokenWarning
	// annotations are annotations of the audit event.
	annotations map[string]string
	until       time.Time
}

type tokenWarning struct{ agent, text string }

func newTokenCache(next authenticator.Token, options cacheOptions) *tokenCache {
	secret := make([]byte, sha256.Size)
	// Read never returns an error.
	_, _ = rand.Read(secret)
	return &tokenCache{
		authenticator: next, options: options,
		hashes:  sync.Pool{New: func() any { return hmac.New(sha256.New, secret) }},
		valid:   results{maximum: maxValidTokens},
		invalid: results{maximum: maxInvalidTokens},
	}
}

// AuthenticateToken implements authenticator.Token.
func (t *tokenCache) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	started := t.options.clock.Now()
	key := t.keyOf(ctx, token)
	result, found := t.lookUp(key, started)
	if !found {
		result = t.share(ctx, key, token)
	}
	t.options.metrics.requested(found, t.options.clock.Since(started))
	if result.err != nil || result.response == nil {
		return nil, false, result.err
	}
	for name, value := range result.annotations {
		audit.AddAuditAnnotation(ctx, name, value)
	}
	for _, w := range result.warnings {
		warning.AddWarning(ctx, w.agent, w.text)
	}
	return result.response, true, nil
}

func (t *tokenCache) lookUp(key tokenKey, now time.Time) (*tokenResult, bool) {
	if result, found := t.valid.get(key, now); found || t.options.invalidLife <= 0 {
		return result, found
	}
	return t.invalid.get(key, now)
}

// share waits for the authentication of a token, and starts it unless another request has started it.
func (t *tokenCache) share(ctx context.Context, key tokenKey, token string) *tokenResult {
	t.options.metrics.blocked.Inc()
	defer t.options.metrics.blocked.Dec()
	audiences, limited := authenticator.AudiencesFrom(ctx)
	done := t.running.DoChan(string(key[:]), func() (any, error) {
		if result, found := t.lookUp(key, t.options.clock.Now()); found {
			return result, nil
		}
		// All waiting requests share the result; therefore the authentication does not end with the context of one
		// request.
		ctx, cancel := context.WithTimeout(context.Background(), sharedTimeout)
		defer cancel()
		if limited {
			ctx = authenticator.WithAudiences(ctx, audiences)
		}
		result := t.authenticate(ctx, token)
		t.keep(key, result)
		return result, nil
	})
	select {
	case shared := <-done:
		return shared.Val.(*tokenResult)
	case <-ctx.Done():
		return &tokenResult{err: ctx.Err()}
	}
}

// authenticate calls the authenticator and records the side effects.
func (t *tokenCache) authenticate(ctx context.Context, token string) (result *tokenResult) {
	recorder := &warningsOfToken{}
	ctx = audit.WithAuditContext(warning.WithWarningRecorder(ctx, recorder))
	result = &tokenResult{}
	t.options.metrics.inFlight.Inc()
	defer func() {
		t.options.metrics.inFlight.Dec()
		if reason := recover(); reason != nil {
			*result = tokenResult{err: fmt.Errorf("%w: %v", errCrashed, reason)}
		}
		t.options.metrics.fetched(result.err)
	}()
	response, ok, err := t.authenticator.AuthenticateToken(ctx, token)
	result.err = err
	if ok && err == nil {
		result.response = response
	}
	result.warnings, result.annotations = recorder.warnings, audit.AuditContextFrom(ctx).GetEventAnnotations()
	return result
}

func (t *tokenCache) keep(key tokenKey, result *tokenResult) {
	now := t.options.clock.Now()
	switch {
	case result.err != nil:
	case result.response != nil && t.options.validLife > 0:
		result.until = now.Add(t.options.validLife)
		t.valid.add(key, result, now)
	case result.response == nil && t.options.invalidLife > 0:
		result.until = now.Add(t.options.invalidLife)
		t.invalid.add(key, result, now)
	}
}

// keyOf returns the hash of a token and the requested audiences. Each is preceded by its length, so that different
// inputs differ in the hashed bytes.
func (t *tokenCache) keyOf(ctx context.Context, token string) (key tokenKey) {
	h := t.hashes.Get().(hash.Hash)
	defer t.hashes.Put(h)
	h.Reset()
	audiences, _ := authenticator.AudiencesFrom(ctx)
	text := make([]byte, 0, len(token)+128)
	for _, part := range append([]string{token}, audiences...) {
		text = append(binary.BigEndian.AppendUint32(text, uint32(len(part))), part...)
	}
	_, _ = h.Write(text)
	h.Sum(key[:0])
	return key
}

// results is a bounded set of cached results.
type results struct {
	maximum int

	mu    sync.RWMutex
	known map[tokenKey]*tokenResult
}

func (r *results) get(key tokenKey, now time.Time) (*tokenResult, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	result, found := r.known[key]
	if !found || !now.Before(result.until) {
		return nil, false
	}
	return result, true
}

// add adds a result. If the set is full, it drops the expired results and, if the set is still full, an eighth of all
// results, so that the amortized cost of a result is constant.
func (r *results) add(key tokenKey, result *tokenResult, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.known == nil {
		r.known = make(map[tokenKey]*tokenResult)
	}
	if len(r.known) >= r.maximum {
		for key, old := range r.known {
			if !now.Before(old.until) {
				delete(r.known, key)
			}
		}
		// The iteration order is random.
		for key := range r.known {
			if len(r.known) <= r.maximum-r.maximum/8 {
				break
			}
			delete(r.known, key)
		}
	}
	r.known[key] = result
}

// warningsOfToken records the warnings of an authenticator, so that they can be repeated for a cached result.
type warningsOfToken struct {
	mu       sync.Mutex
	warnings []tokenWarning
}

// AddWarning implements warning.Recorder.
func (w *warningsOfToken) AddWarning(agent, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.warnings = append(w.warnings, tokenWarning{agent, text})
}

var _ authenticator.Token = (*tokenCache)(nil)
