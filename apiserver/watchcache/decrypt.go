package watchcache

import (
	"context"
	"errors"
	"slices"
	"time"

	"quorate.dev/apiserver/storage"
)

// decryptionWait is how long the watch stream, which all collections share, waits for a KMS plugin. Plugins are called
// only for events that another server encrypted with a key that this one has not used yet. Events that no plugin encrypted
// have no such limit, which a busy machine can exceed.
const decryptionWait = 100 * time.Millisecond

var errSlowDecryption = errors.New("the KMS plugin did not decrypt events in time")

// decrypt returns the events with decrypted values. It may change events. No lock is held meanwhile.
func (c *Caches) decrypt(events []storage.Event) ([]storage.Event, error) {
	if !c.store.DecryptsRemotely(events) {
		return events, c.store.Decrypt(c.ctx, events)
	}
	ctx, cancel := context.WithTimeout(c.ctx, decryptionWait)
	defer cancel()
	decrypted, done := slices.Clone(events), make(chan error, 1)
	go func() { done <- c.store.Decrypt(ctx, decrypted) }() // version 1 of KMS plugins ignores ctx
	select {
	case err := <-done:
		return decrypted, err
	case <-ctx.Done():
		return nil, errSlowDecryption
	}
}

// reread invalidates a cache one of whose events cannot be decrypted. As in kube-apiserver, the collection is read again
// until all of its objects can be.
func (c *Caches) reread(cache *Cache, err error) {
	c.log.Error(err, "Could not decrypt an event; reading its collection again", "path", cache.path)
	if cache.invalidate(false) {
		go cache.fetch(c.ctx)
	}
}
