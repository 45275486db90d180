package authentication

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	upstream "k8s.io/apiserver/pkg/authentication/token/cache"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/utils/clock"
	testclock "k8s.io/utils/clock/testing"
)

// issuerStub accepts tokens that begin with "good", with their number of audiences as the UID.
type issuerStub struct {
	calls atomic.Int32
	wait  chan struct{} // closed when the authentication may end; nil: it does not wait
}

func (i *issuerStub) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	i.calls.Add(1)
	if i.wait != nil {
		<-i.wait
	}
	switch {
	case token == "panic":
		panic("in the authenticator")
	case token == "error":
		return nil, false, errors.New("cannot decide")
	case !strings.HasPrefix(token, "good"):
		return nil, false, nil
	}
	audiences, _ := authenticator.AudiencesFrom(ctx)
	warning.AddWarning(ctx, "agent", "about "+token)
	audit.AddAuditAnnotation(ctx, "token", token)
	return &authenticator.Response{User: &user.DefaultInfo{Name: token, UID: fmt.Sprint(len(audiences))}}, true, nil
}

func newTestCache(next authenticator.Token) (*tokenCache, *testclock.FakePassiveClock) {
	clock := testclock.NewFakePassiveClock(time.Now())
	return newTokenCache(next, cacheOptions{
		validLife: 10 * time.Second, invalidLife: 10 * time.Second, clock: clock,
		metrics: newCacheMetrics(prometheus.NewRegistry()),
	}), clock
}

func isAccepted(t testing.TB, cache authenticator.Token, token string) bool {
	t.Helper()
	_, ok, err := cache.AuthenticateToken(t.Context(), token)
	if err != nil {
		t.Fatal(err)
	}
	return ok
}

// A client that invents tokens neither fills memory nor evicts the tokens of others.
func TestFloodOfBadTokens(t *testing.T) {
	stub := &issuerStub{}
	cache, _ := newTestCache(stub)
	if !isAccepted(t, cache, "good") {
		t.Fatal("the good token is rejected")
	}
	const flood = 3 * maxInvalidTokens
	for i := range flood {
		if isAccepted(t, cache, fmt.Sprint("bad ", i)) {
			t.Fatal("a bad token is accepted")
		}
	}
	if got := len(cache.invalid.known); got > maxInvalidTokens {
		t.Errorf("%d bad tokens are kept, want at most %d", got, maxInvalidTokens)
	}
	if calls := stub.calls.Load(); !isAccepted(t, cache, "good") || stub.calls.Load() != calls {
		t.Error("the good token was evicted")
	}
}

// When all cached tokens are valid, only some of them make room for more.
func TestFullCacheKeepsMostTokens(t *testing.T) {
	r := results{maximum: 80}
	now := time.Now()
	for i := range 1000 {
		r.add(tokenKey{byte(i), byte(i >> 8)}, &tokenResult{until: now.Add(time.Second)}, now)
		if len(r.known) > 80 || i >= 80 && len(r.known) < 70 {
			t.Fatalf("%d of 80 results are kept", len(r.known))
		}
	}
	r.add(tokenKey{1, 2, 3}, &tokenResult{until: now.Add(time.Minute)}, now.Add(time.Second))
	for len(r.known) >= 80 {
		t.Fatalf("%d results are kept after all have expired", len(r.known))
	}
}

func TestCachedResults(t *testing.T) {
	stub := &issuerStub{}
	cache, clock := newTestCache(stub)
	for _, token := range []string{"good", "bad"} {
		calls := stub.calls.Load()
		first := isAccepted(t, cache, token)
		if isAccepted(t, cache, token) != first || stub.calls.Load() != calls+1 {
			t.Errorf("%s: the result is not cached", token)
		}
		clock.SetTime(clock.Now().Add(10 * time.Second))
		if isAccepted(t, cache, token) != first || stub.calls.Load() != calls+2 {
			t.Errorf("%s: the result does not expire", token)
		}
	}
	ctx := authenticator.WithAudiences(t.Context(), authenticator.Audiences{"a", "b"})
	if response, _, _ := cache.AuthenticateToken(ctx, "good"); response.User.GetUID() != "2" {
		t.Errorf("the result for other audiences was used: %v", response.User)
	}
}

func TestErrorsAreNotCached(t *testing.T) {
	stub := &issuerStub{}
	cache, _ := newTestCache(stub)
	for _, token := range []string{"error", "panic", "error", "panic"} {
		if _, ok, err := cache.AuthenticateToken(t.Context(), token); ok || err == nil {
			t.Errorf("%s: %t, %v", token, ok, err)
		}
	}
	if calls := stub.calls.Load(); calls != 4 {
		t.Errorf("the authenticator was called %d times, want 4", calls)
	}
}

// recorder records warnings.
type recorder struct{ texts []string }

func (r *recorder) AddWarning(_, text string) { r.texts = append(r.texts, text) }

// The side effects of an authentication are repeated for each request.
func TestSideEffectsAreRepeated(t *testing.T) {
	cache, _ := newTestCache(&issuerStub{})
	for range 2 {
		r := &recorder{}
		ctx := audit.WithAuditContext(warning.WithWarningRecorder(t.Context(), r))
		if _, ok, err := cache.AuthenticateToken(ctx, "good"); !ok || err != nil {
			t.Fatal(err)
		}
		if len(r.texts) != 1 || r.texts[0] != "about good" {
			t.Errorf("warnings %q", r.texts)
		}
		if got := audit.AuditContextFrom(ctx).GetEventAnnotations()["token"]; got != "good" {
			t.Errorf("annotation %q", got)
		}
	}
}

// Requests with the same token share one authentication, which does not end with the first of them.
func TestConcurrentRequestsShareAnAuthentication(t *testing.T) {
	stub := &issuerStub{wait: make(chan struct{})}
	cache, _ := newTestCache(stub)
	cancelled, cancel := context.WithCancel(t.Context())
	first := make(chan error)
	go func() {
		_, _, err := cache.AuthenticateToken(cancelled, "good")
		first <- err
	}()
	for stub.calls.Load() == 0 {
		select {
		case err := <-first:
			t.Fatal(err)
		default:
		}
	}
	var group sync.WaitGroup
	for range 10 {
		group.Go(func() {
			if _, ok, err := cache.AuthenticateToken(t.Context(), "good"); !ok || err != nil {
				t.Errorf("%t, %v", ok, err)
			}
		})
	}
	cancel()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("the cancelled request returns %v", err)
	}
	close(stub.wait)
	group.Wait()
	if calls := stub.calls.Load(); calls != 1 {
		t.Errorf("the authenticator was called %d times", calls)
	}
}

// A result of an authentication that began before a flush is not used after it.
func TestFlush(t *testing.T) {
	stub := &issuerStub{wait: make(chan struct{})}
	tokens := newTokens([]authenticator.Token{stub}, time.Minute, testclock.NewFakePassiveClock(time.Now()),
		newCacheMetrics(prometheus.NewRegistry()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _, _ = tokens.AuthenticateToken(t.Context(), "good")
	}()
	for stub.calls.Load() == 0 {
		select {
		case <-done:
			t.Fatal("the authentication ended early")
		default:
		}
	}
	tokens.Flush()
	close(stub.wait)
	<-done
	if !isAccepted(t, tokens, "good") || stub.calls.Load() != 2 {
		t.Errorf("the authenticator was called %d times, want 2", stub.calls.Load())
	}
}

// BenchmarkCachedToken compares the cost of a cached token with upstream's cache.
func BenchmarkCachedToken(b *testing.B) {
	here := newTokenCache(&issuerStub{}, cacheOptions{
		validLife: time.Hour, clock: clock.RealClock{}, metrics: newCacheMetrics(prometheus.NewRegistry()),
	})
	token := "good" + strings.Repeat("x", 1000)
	for name, tokens := range map[string]authenticator.Token{
		"here": here, "upstream": upstream.New(&issuerStub{}, false, time.Hour, 0),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if !isAccepted(b, tokens, token) {
					b.Fatal("the token is rejected")
				}
			}
		})
	}
}
