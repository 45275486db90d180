package watchcache

import (
	"context"
	"errors"
	"slices"
	"time"

	"quorate.dev/apiserver/storage"
)

// decryptionWait bounds the time for which the watch stream, which all collections share, waits for a KMS plugin. A
// plugin is called only for values that another server has encrypted with a key that this server has not used yet.
// Events that no plugin has encrypted are decrypted without a limit, which a busy machine could exceed.
const decryptionWait = 100 * time.Millisecond

var errSlowDecryption = errors.New("the KMS plugin did not decrypt events in time")

// decrypt returns events with decrypted values. It may change the given events. The caller holds no lock.
func (c *Caches) decrypt(events []storage.Event) ([]storage.Event, error) {
	if !c.store.DecryptsRemotely(events) {
		return events, c.store.Decrypt(c.ctx, events)
	}
	ctx, cancel := context.WithTimeout(c.ctx, decryptionWait)
	defer cancel()
	decrypted, done := slices.Clone(events), make(chan error, 1)
	go func() { done <- c.store.Decrypt(ctx, decrypted) }() // version 1 of the KMS API ignores ctx
	select {
	case err := <-done:
		return decrypted, err
	case <-ctx.Done():
		return nil, errSlowDecryption
	}
}

// reread makes a cache list its collection again, because a value could not be decrypted. As in kube-apiserver, reads
// of the collection fail until all of its objects can be decrypted.
func (c *Caches) reread(cache *Cache, err error) {
	c.log.Error(err, "Could not decrypt a value; reading its collection again", "path", cache.path)
	if cache.invalidate(false) {
		go cache.fetch(c.ctx)
	}
}

// VerifyDecryption makes Run read the values of all collections that caches hold, and withdraw the collections with a
// value that can no longer be decrypted. It must be called after the keys have changed: the caches hold decrypted
// values and would serve them until the next restart. VerifyDecryption does not wait.
func (c *Caches) VerifyDecryption() {
	select {
	case c.verifications <- struct{}{}:
	default: // a verification that has not begun yet will use the new keys too
	}
}

// verifyDecryption verifies all caches after each call of VerifyDecryption, until ctx ends.
func (c *Caches) verifyDecryption(ctx context.Context) {
	for {
		select {
		case <-c.verifications:
		case <-ctx.Done():
			return
		}
		for _, cache := range *c.byPath.Load() {
			cache.verifyDecryption(ctx, 0)
		}
	}
}

// outageWait is the time that a KMS plugin which cannot decrypt a value gets to recover, for example to restart.
const outageWait = 10 * time.Second

// verifyDecryption withdraws the state of the cache if a stored value cannot be decrypted, neither now nor in as many
// repeated reads as given, each outageWait later. It repeats a read that fails for another reason until ctx ends.
func (c *Cache) verifyDecryption(ctx context.Context, repeats int) {
	for backoff := minBackoff; ctx.Err() == nil; backoff = min(2*backoff, maxBackoff) {
		err := c.decryptAll(ctx)
		var unreadable *storage.TransformError
		switch {
		case err == nil || ctx.Err() != nil:
			return
		case errors.As(err, &unreadable) && repeats == 0:
			c.caches.reread(c, err)
			return
		case errors.As(err, &unreadable):
			repeats, backoff = repeats-1, outageWait
		}
		c.caches.log.Error(err, "Could not verify that a collection can be decrypted; retrying", "path", c.path)
		c.caches.sleep(ctx, backoff)
	}
}

// verifiedPage is the number of values per request while a collection is verified. The values of one page are in
// memory at the same time, in addition to the cache.
const verifiedPage = 500

// decryptAll reads and decrypts the stored values of a collection that the cache holds. If no value is encrypted, it
// reads only one: keys do not matter, but a changed configuration may refuse plain values. A collection that is being
// listed is listed again instead, because its first pages may have been decrypted with former keys.
func (c *Cache) decryptAll(ctx context.Context) error {
	if c.restartFetch() {
		return nil
	}
	encrypted := c.protection.Load() != int32(storage.Plain)
	options := storage.ListOptions{Limit: 1}
	if encrypted {
		options.Limit = verifiedPage
	}
	for {
		page, err := c.caches.store.List(ctx, c.prefix, options)
		if err != nil || !encrypted || !page.More || len(page.Values) == 0 {
			return err
		}
		options.Revision, options.From = page.Revision, page.Values[len(page.Values)-1].Path+"\x00"
	}
}

// restartFetch makes a list of the collection that is in progress start again. It reports whether the cache is not
// ready, so that it serves no values that could be unreadable.
func (c *Cache) restartFetch() (unread bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == loading {
		c.epoch++
	}
	return c.state != ready
}

// protect raises Cache.protection to the protection of a value.
func (c *Cache) protect(protection storage.Protection) {
	for known := c.protection.Load(); int32(protection) > known; known = c.protection.Load() {
		if c.protection.CompareAndSwap(known, int32(protection)) {
			return
		}
	}
}
