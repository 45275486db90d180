package request

import (
	"context"
	"sync"

	"golang.org/x/sync/semaphore"
	upstream "k8s.io/apiserver/pkg/endpoints/request"
)

// userShare is the part of a limit, 1/4, that the requests of one user may hold together.
const userShare = 4

// ByteLimit bounds the bytes that requests hold concurrently, in total and by user: clients that do not read their
// responses hold at most their user's share. Waiting requests are served in order, those of one user among themselves
// first.
type ByteLimit struct {
	bound, share int64
	free         *semaphore.Weighted

	mu    sync.Mutex
	users map[string]*userLimit // with requests that hold some or wait
}

// userLimit is what one user may hold.
type userLimit struct {
	free     *semaphore.Weighted
	requests int // guarded by the limit's mutex
}

// NewByteLimit returns a limit of the given number of bytes.
func NewByteLimit(bound int64) *ByteLimit {
	return &ByteLimit{
		bound: bound, share: max(bound/userShare, 1), free: semaphore.NewWeighted(bound), users: map[string]*userLimit{},
	}
}

// Acquire waits until the bytes may be held for the user of ctx, or returns the error of ctx. More than the limit count as
// the limit, so that such a request is served when no other holds anything; more than a user's share count as the share.
// A caller must not acquire again before Release, because two such callers could deadlock.
func (l *ByteLimit) Acquire(ctx context.Context, bytes int64) (*Held, error) {
	bytes = min(bytes, l.bound)
	if bytes <= 0 {
		return &Held{limit: l}, nil
	}
	name := holder(ctx)
	user := l.enter(name)
	// In this order: what waits for others of the same user holds nothing that another user waits for.
	if err := user.free.Acquire(ctx, l.shareOf(bytes)); err != nil {
		l.leave(name)
		return nil, err
	}
	if err := l.free.Acquire(ctx, bytes); err != nil {
		user.free.Release(l.shareOf(bytes))
		l.leave(name)
		return nil, err
	}
	return &Held{limit: l, name: name, user: user, bytes: bytes}, nil
}

// TryAcquire is Acquire for callers that do not wait. It returns nil if the bytes are not free.
func (l *ByteLimit) TryAcquire(ctx context.Context, bytes int64) *Held {
	bytes = min(bytes, l.bound)
	if bytes <= 0 {
		return &Held{limit: l}
	}
	name := holder(ctx)
	user := l.enter(name)
	if !user.free.TryAcquire(l.shareOf(bytes)) {
		l.leave(name)
		return nil
	}
	if !l.free.TryAcquire(bytes) {
		user.free.Release(l.shareOf(bytes))
		l.leave(name)
		return nil
	}
	return &Held{limit: l, name: name, user: user, bytes: bytes}
}

// holder returns the name of the user of ctx.
func holder(ctx context.Context) string {
	if user, ok := upstream.UserFrom(ctx); ok {
		return user.GetName()
	}
	return ""
}

// shareOf is what so many bytes take of their user's share.
func (l *ByteLimit) shareOf(bytes int64) int64 { return min(bytes, l.share) }

// enter returns the limit of a user for one request more. leave must follow.
func (l *ByteLimit) enter(name string) *userLimit {
	l.mu.Lock()
	defer l.mu.Unlock()
	user := l.users[name]
	if user == nil {
		user = &userLimit{free: semaphore.NewWeighted(l.share)}
		l.users[name] = user
	}
	user.requests++
	return user
}

func (l *ByteLimit) leave(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	user := l.users[name]
	if user.requests--; user.requests == 0 {
		delete(l.users, name)
	}
}

// Held is one request's share of a limit. It is not safe for concurrent use.
type Held struct {
	limit *ByteLimit
	name  string
	user  *userLimit
	bytes int64
}

// Shrink returns all but the given number of bytes.
func (h *Held) Shrink(to int64) {
	if to >= h.bytes {
		return
	}
	h.limit.free.Release(h.bytes - to)
	if share := h.limit.shareOf(h.bytes) - h.limit.shareOf(to); share > 0 {
		h.user.free.Release(share)
	}
	if h.bytes = to; to == 0 {
		h.limit.leave(h.name)
	}
}

// Release returns all bytes. Further calls have no effect.
func (h *Held) Release() { h.Shrink(0) }
