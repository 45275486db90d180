package limited

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// maxRetryDelay is the longest delay of a retry. It equals the maximum back-off of reconciliations that fail with an
// error.
const maxRetryDelay = 15 * time.Second

// Retries computes the delays after which a controller repeats reconciliations that ended with a conflict. A conflict
// is not an error: usually the next reconciliation reads the current state and succeeds. Otherwise the delays double,
// so that a persistent conflict causes few writes. Retries is safe for concurrent use.
type Retries struct {
	first time.Duration

	mu    sync.Mutex
	after map[types.NamespacedName]time.Duration // the last delay of each object that had a conflict
}

// NewRetries returns delays that begin with first and double.
func NewRetries(first time.Duration) *Retries {
	return &Retries{first: first, after: map[types.NamespacedName]time.Duration{}}
}

// Conflict returns the delay after a conflict in the reconciliation of an object.
func (r *Retries) Conflict(name types.NamespacedName) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	delay := min(max(2*r.after[name], r.first), maxRetryDelay)
	r.after[name] = delay
	return delay
}

// Forget resets the delay of an object to the first one. Callers must call it after each reconciliation without a
// conflict.
func (r *Retries) Forget(name types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.after, name)
}
