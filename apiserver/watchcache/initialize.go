package watchcache

import (
	"context"
	"errors"
	"fmt"
	"time"

	"quorate.dev/apiserver/storage"
)

// InitializingError means that the collection has not been read from the store yet, or is being read again.
type InitializingError struct {
	Downtime time.Duration // time since the cache was created or last invalidated
	// Unreadable is the error of the last list if it failed because a value could not be decrypted, else nil.
	Unreadable *storage.TransformError
}

// Error returns the text of kube-apiserver's error, without the reason.
func (e *InitializingError) Error() string { return "storage is (re)initializing" }

// Initialized reports whether the store is being watched and no collection is being read from it.
func (c *Caches) Initialized() bool {
	select {
	case <-c.live:
	default:
		return false
	}
	for _, cache := range *c.byPath.Load() {
		cache.mu.RLock()
		state := cache.state
		cache.mu.RUnlock()
		if state == loading {
			return false
		}
	}
	return true
}

// Initializing starts the cache if necessary. It reports whether the collection is being read from the store.
func (c *Cache) Initializing() bool {
	c.start.Do(c.load)
	if c.current.Load() != nil {
		return false
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.state == idle || c.state == loading
}

// AwaitInitialized starts the cache if necessary and waits until the collection has been read. After the limit it
// fails with an InitializingError.
func (c *Cache) AwaitInitialized(ctx context.Context, limit time.Duration) error {
	if !c.Initializing() {
		return nil
	}
	timeout := c.caches.clock.NewTimer(limit)
	defer timeout.Stop()
	err := c.awaitReady(ctx, timeout.C())
	if !errors.Is(err, errTimeout) {
		return err
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	initializing := &InitializingError{Downtime: c.caches.clock.Since(c.unready)}
	errors.As(c.failure, &initializing.Unreadable)
	return fmt.Errorf("%s: %w", c.path, initializing)
}
