package request

import (
	"context"
	"sync"

	"golang.org/x/sync/semaphore"
	upstream "k8s.io/apiserver/pkg/endpoints/request"
)

// userShare is the reciprocal of the share of a limit that all requests of one user may hold together.
const userShare = 4

// ByteLimit bounds the bytes that requests hold concurrently, in total and for each user: clients that do not read
// their responses hold at most their user's share. Requests acquire bytes in the order of their arrival, first among
// the requests of their user, then among all users.
type ByteLimit struct {
	bound, share int64
	free         *semaphore.Weighted

	mu sync.Mutex
	// users has the users whose requests hold bytes or wait for bytes, by name.
	users map[string]*userLimit
}

// userLimit is the limit of one user.
type userLimit struct {
	free *semaphore.Weighted
	// requests is the number of requests that hold bytes or wait. It is guarded by the ByteLimit's mutex.
	requests int
}

// NewByteLimit returns a limit of the given number of bytes.
func NewByteLimit(bound int64) *ByteLimit {
	return &ByteLimit{
		bound: bound, share: max(bound/userShare, 1), free: semaphore.NewWeighted(bound), users: map[string]*userLimit{},
	}
}

// Acquire waits until the user of ctx may hold the bytes, or returns the error of ctx. A request for more than the
// whole limit acquires the whole limit, so that it is served when no other request holds bytes; more than a user's
// share counts as the share. A caller must Release the bytes before it acquires again, because two callers that hold
// bytes and wait could deadlock.
func (l *ByteLimit) Acquire(ctx context.Context, bytes int64) (*Held, error) {
	bytes = min(bytes, l.bound)
	if bytes <= 0 {
		return &Held{limit: l}, nil
	}
	name := holder(ctx)
	user := l.enter(name)
	// The user's share is acquired first, so that a request that waits for other requests of its user holds nothing
	// that another user waits for.
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

// TryAcquire is like Acquire, but returns nil instead of waiting.
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

// holder returns the name of the user of ctx, or "".
func holder(ctx context.Context) string {
	if user, ok := upstream.UserFrom(ctx); ok {
		return user.GetName()
	}
	return ""
}

// shareOf returns how much of a user's share the given number of bytes takes.
func (l *ByteLimit) shareOf(bytes int64) int64 { return min(bytes, l.share) }

// enter returns the limit of a user and counts one more request of the user. The caller must call leave.
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

// Held is the bytes that one request holds. It is not safe for concurrent use.
type Held struct {
	limit *ByteLimit
	name  string
	user  *userLimit
	bytes int64
}

// Shrink releases all but the given number of bytes.
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

// Release releases all bytes. Further calls have no effect.
func (h *Held) Release() { h.Shrink(0) }
