package host

import (
	"context"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/lru"

	"quorate.dev/apiserver/authorization"
)

const (
	// userShare is the reciprocal of the share of all SubjectAccessReviews that the requests of one user may cause when
	// there are many.
	userShare = 4
	// maxWait is the maximum time for which a review waits. Requests whose review would wait longer are rejected, so
	// that they do not hold the slots of other users' requests.
	maxWait = time.Second
	// maxUsers is the number of users whose reviews are counted. The least recently seen user is dropped.
	maxUsers = 4096
)

// fairLimiter is the rate limit of SubjectAccessReviews. Unlike client-go's limiter, it divides the rate among the
// users whose requests are reviewed: while half of the burst has been used, each user gets at most a share. Otherwise
// one client without permissions could delay the requests of all users.
type fairLimiter struct {
	total *rate.Limiter
	mu    sync.Mutex
	// users has the *rate.Limiter of each user by name.
	users *lru.Cache
}

var _ flowcontrol.RateLimiter = &fairLimiter{}

func newFairLimiter() *fairLimiter {
	return &fairLimiter{total: rate.NewLimiter(qps, burst), users: lru.New(maxUsers)}
}

// of returns the rate limiter of the user of ctx.
func (l *fairLimiter) of(ctx context.Context) *rate.Limiter {
	name := ""
	if user, ok := request.UserFrom(ctx); ok {
		name = user.GetName()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if known, ok := l.users.Get(name); ok {
		return known.(*rate.Limiter)
	}
	limiter := rate.NewLimiter(qps/userShare, burst/userShare)
	l.users.Add(name, limiter)
	return limiter
}

// Wait implements flowcontrol.RateLimiter.
func (l *fairLimiter) Wait(ctx context.Context) error {
	if own := l.of(ctx); !own.Allow() && l.total.Tokens() < burst/2 {
		if err := reserve(ctx, own); err != nil {
			return err
		}
	}
	return reserve(ctx, l.total)
}

// reserve waits for a token of limiter, but at most maxWait; a longer wait is the error authorization.ErrBusy.
func reserve(ctx context.Context, limiter *rate.Limiter) error {
	reservation := limiter.Reserve()
	delay := reservation.Delay()
	if delay == 0 {
		return nil
	}
	if delay > maxWait {
		reservation.Cancel()
		return authorization.ErrBusy
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		reservation.Cancel()
		return ctx.Err()
	}
}

// Accept implements flowcontrol.RateLimiter.
func (l *fairLimiter) Accept() { _ = l.total.Wait(context.Background()) }

// TryAccept implements flowcontrol.RateLimiter.
func (l *fairLimiter) TryAccept() bool { return l.total.Allow() }

// Stop implements flowcontrol.RateLimiter.
func (l *fairLimiter) Stop() {}

// QPS implements flowcontrol.RateLimiter.
func (l *fairLimiter) QPS() float32 { return qps }
