package watchcache

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"quorate.dev/apiserver/storage"
)

// ConsistencyInterval is the minimum time between two consistency checks, kube-apiserver's ConsistencyCheckPeriod.
const ConsistencyInterval = 5 * time.Minute

// consistencyJitter is the maximum random extension of the interval, as a fraction of it.
const consistencyJitter = 0.5

// checkConsistency compares all caches that are ready with the store, one after the other, at intervals until ctx
// ends.
func (c *Caches) checkConsistency(ctx context.Context) {
	for c.checks > 0 && ctx.Err() == nil {
		c.sleep(ctx, wait.Jitter(c.checks, consistencyJitter))
		for _, cache := range *c.byPath.Load() {
			if ctx.Err() != nil {
				return
			}
			if cache.Loaded() {
				cache.checkConsistency(ctx)
			}
		}
	}
}

// inconsistency is the first difference between a cache and the store.
type inconsistency struct {
	path          string
	cached, store int64 // revisions of the object in the cache and in the store; 0: it does not exist
}

// checkConsistency compares the cache with the store at the same revision. If they differ, the cache starts over and
// expires its watchers: it is unknown which events they have missed, so that their clients must list again.
// kube-apiserver compares digests instead of revisions (consistencyChecker).
func (c *Cache) checkConsistency(ctx context.Context) {
	snapshot := c.now()
	if snapshot == nil {
		return
	}
	found, err := c.compare(ctx, snapshot)
	switch {
	case err != nil && (ctx.Err() != nil || c.now() == nil):
		return
	case err != nil:
		c.stats.inconclusive.Add(1)
		c.caches.log.Error(err, "Consistency check of the watch cache failed", "path", c.path)
	case found == nil:
		c.stats.consistent.Add(1)
		c.caches.log.V(3).Info("Watch cache is consistent", "path", c.path, "revision", snapshot.revision)
		if c.protection.Load() == int32(storage.EncryptedRemotely) { // a KMS plugin can lose keys at any time
			c.verifyDecryption(ctx, 1)
		}
	default:
		c.stats.inconsistent.Add(1)
		c.caches.log.Error(nil, "Watch cache is inconsistent with storage; starting over", "path", c.path,
			"revision", snapshot.revision, "object", found.path, "cachedRevision", found.cached, "storedRevision", found.store)
		if c.invalidate(true) {
			c.fetch(ctx)
		}
	}
}

// compare returns the first difference between a snapshot and the keys of the store at the snapshot's revision, nil
// if there is none. It reads keys and revisions only, in pages, and holds no lock: the snapshot does not change.
func (c *Cache) compare(ctx context.Context, snapshot *Snapshot) (*inconsistency, error) {
	options := storage.ListOptions{Revision: snapshot.revision, Limit: pageSize}
	for {
		page, err := c.caches.store.ListKeys(ctx, c.prefix, options)
		if err != nil {
			return nil, err
		}
		more := page.More && len(page.Values) > 0
		if found := snapshot.difference(c.prefix, options.From, page.Values, more); found != nil || !more {
			return found, nil
		}
		options.From = page.Values[len(page.Values)-1].Path + "\x00"
	}
}

// difference compares the entries from a path on with a page of values, both sorted by path. more means that further
// values follow the page, so that later entries are not compared yet.
func (s *Snapshot) difference(prefix, from string, values []storage.Value, more bool) (found *inconsistency) {
	s.Ascend(prefix, from, func(e *Entry) bool {
		switch {
		case len(values) == 0 && more:
			return false
		case len(values) == 0 || e.path < values[0].Path:
			found = &inconsistency{path: e.path, cached: e.revision}
		case e.path > values[0].Path:
			found = &inconsistency{path: values[0].Path, store: values[0].Revision}
		case e.revision != values[0].Revision:
			found = &inconsistency{path: e.path, cached: e.revision, store: values[0].Revision}
		default:
			values = values[1:]
		}
		return found == nil
	})
	if found == nil && len(values) > 0 {
		found = &inconsistency{path: values[0].Path, store: values[0].Revision}
	}
	return found
}
