package registry

import (
	"context"
	"errors"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"quorate.dev/apiserver/registry/selection"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/storage"
	"quorate.dev/apiserver/watchcache"
)

// This file has the lists that are read from etcd page by page (listing.stored); list.go has the lists from the watch
// cache (listing.page) and decides between the two. Both apply the same selection.Filter. They differ in memory: a list
// from the cache shares its entries with all readers, while a list from storage decrypts and holds separate entries,
// for which it acquires memory first (Registry.listBytes).

const (
	// maxListBytes bounds the stored bytes that all concurrent lists from storage hold.
	maxListBytes = 64 << 20
	// pageBytes is the target size of one range request to etcd.
	pageBytes = 4 << 20
	// minPageSize and maxPageSize bound the number of objects of one range request.
	minPageSize, maxPageSize = 100, 10_000
	// defaultObjectSize is assumed, in bytes, while the watch cache has no mean size of the collection.
	defaultObjectSize = 4 << 10
)

const expiredContinue = "The provided continue parameter is too old to display a consistent list result. You can " +
	"start a new list without the continue parameter, or use the continue token in this response to retrieve the " +
	"remainder of the results. Continuing with the provided token results in an inconsistent list - " +
	"objects that were created, modified, or deleted between the time the first chunk was returned and " +
	"now may show up in the list."

// exactSnapshot returns the state of the collection at exactly a revision. Like snapshot, it continues with the new
// cache if the cache is dropped during the wait.
func (r *Registry) exactSnapshot(ctx context.Context, t resource.Target, revision int64) (*watchcache.Snapshot, error) {
	for {
		snapshot, err := r.Cache(t.Match).Exact(ctx, revision)
		if again, err := r.dropped(t, err); !again || ctx.Err() != nil {
			return snapshot, err
		}
	}
}

// latestStored lists a page of the current state from storage. The revision is read first, so that all chunks of the
// page, and the pages after it, are at one revision.
func (l *listing) latestStored(ctx context.Context) (*List, error) {
	revision, err := l.storage().Caches.Current(ctx)
	if err != nil {
		return nil, status(err, l.target)
	}
	return l.stored(ctx, revision)
}

// storedAtLeast lists a page of the current state from storage, which must not be older than the client's revision. It
// does not wait: no cache lags in between, so that a revision which etcd has not reached is an error of the client.
func (l *listing) storedAtLeast(ctx context.Context) (*List, error) {
	current, err := l.storage().Caches.Current(ctx)
	if err != nil {
		return nil, status(err, l.target)
	}
	if l.options.ResourceVersion != "" {
		wanted, err := parseRevision(l.options.ResourceVersion)
		if err != nil {
			return nil, apierrors.NewBadRequest("invalid resource version: " + err.Error())
		}
		if wanted > current {
			return nil, l.tooLarge(wanted, current)
		}
	}
	return l.stored(ctx, current)
}

// tooLarge is the error for a revision in the future. Without a cache, clients need not wait before they retry.
func (l *listing) tooLarge(wanted, current int64) error {
	if l.registry.bypassesCache(l.target) {
		return tooLargeFor(0, wanted, current)
	}
	return tooLarge(wanted, current)
}

// stored lists a page from storage at exactly a revision. It waits until the memory budget of such lists has room for
// the page. The estimate is one chunk plus the mean size of an object for each object that the page can have; selectors
// are not considered, so that a list with selectors may hold more budget than it uses. After an error nothing is held.
func (l *listing) stored(ctx context.Context, revision int64) (*List, error) {
	page := &List{Revision: revision, Shard: l.options.Shard}
	size := l.registry.Cache(l.target.Match).MeanSize()
	if size == 0 {
		size = defaultObjectSize
	}
	count, err := l.storage().Store.Count(ctx, l.collection, l.from, revision)
	if err == nil {
		page.held, err = l.registry.listBytes.Acquire(ctx, pageBytes+size*l.options.most(count))
	}
	if err == nil {
		err = l.fill(ctx, page, size)
	}
	if err != nil {
		page.Close()
		return nil, l.storedError(ctx, revision, err)
	}
	l.registry.Cache(l.target.Match).CountStoredList(l.visited, l.evaluated, len(page.Entries))
	return page, nil
}

// fill reads a page from storage, in chunks or as a stream of chunks. size is the expected size of an object in
// bytes. fill does not change l.from: after an error the client has seen nothing of the page, and the token of
// storedError starts there again.
func (l *listing) fill(ctx context.Context, page *List, size int64) error {
	if path, ok := l.filter.Only(); ok {
		return l.fillOne(ctx, page, path)
	}
	// With selectors, the number of values that the page needs is unknown.
	selective, from := !l.options.Everything(), l.from
	options := storage.ListOptions{
		Revision: page.Revision, From: from, PageSize: chunkSize(size), Partial: selective && l.options.Limit > 0,
	}
	if !selective {
		options.Limit = l.options.Limit
	}
	for chunk, err := range l.storage().Store.Pages(ctx, l.collection, options) {
		if err != nil {
			return l.unreadable(ctx, page, from, err)
		}
		full, err := l.appendChunk(ctx, page, chunk)
		if err != nil || full || !chunk.More {
			return err
		}
		from = chunk.Values[len(chunk.Values)-1].Path + firstKeyAfter
	}
	return nil
}

// fillOne reads a page of the only object that can be selected: one key instead of the whole collection, like
// kube-apiserver's Store.ListPredicate for a predicate that MatchesSingle.
func (l *listing) fillOne(ctx context.Context, page *List, path string) error {
	chunk, err := l.storage().Store.List(ctx, l.collection, storage.ListOptions{
		Revision: page.Revision, From: path, Limit: 1,
	})
	if err != nil || path < l.from || len(chunk.Values) == 0 || chunk.Values[0].Path != path {
		return err
	}
	chunk.More = false
	_, err = l.appendChunk(ctx, page, chunk)
	return err
}

// appendChunk appends the selected objects of a chunk and reports whether the page is full.
func (l *listing) appendChunk(ctx context.Context, page *List, chunk storage.Page) (full bool, err error) {
	cache := l.registry.Cache(l.target.Match)
	l.visited += len(chunk.Values)
	entries := make([]*watchcache.Entry, len(chunk.Values))
	for i, value := range chunk.Values {
		entries[i] = cache.Detached(value)
	}
	if err := l.filter.Prepare(ctx, entries); err != nil {
		return false, internalError(err)
	}
	for i, value := range chunk.Values {
		if i%selection.ScanInterval == 0 && ctx.Err() != nil {
			return false, ctx.Err()
		}
		l.evaluated++
		entry := entries[i]
		selected, err := l.filter.Selects(ctx, entry)
		if err != nil {
			return false, internalError(err)
		}
		if selected {
			page.Entries = append(page.Entries, entry)
		}
		if l.options.Limit > 0 && int64(len(page.Entries)) == l.options.Limit {
			return true, l.finishPage(page, chunk, value.Path)
		}
	}
	return false, nil
}

// chunkSize returns how many objects of the given size one range request reads at most. etcd3 starts with the limit of
// the client instead, and doubles it while selectors reject objects.
func chunkSize(size int64) int64 { return min(max(pageBytes/max(size, 1), minPageSize), maxPageSize) }

// finishPage adds the continue token to a page whose last object is at last. If last is also the last object of the
// collection, there is no next page and no token.
func (l *listing) finishPage(page *List, chunk storage.Page, last string) (err error) {
	if !chunk.More && strings.HasSuffix(chunk.Values[len(chunk.Values)-1].Path, last) {
		return nil
	}
	if l.options.Everything() {
		remaining := chunk.Remaining
		page.Remaining = &remaining
	}
	page.Continue, err = l.continueAfter(last, page.Revision)
	return err
}

// storedError returns the API status of an error. If the revision of a paged list has been compacted, the error
// contains a token that continues at the current revision, like handleCompactedErrorForPaging of etcd3.
func (l *listing) storedError(ctx context.Context, revision int64, err error) error {
	switch {
	case errors.Is(err, storage.ErrFuture):
		current, _ := l.storage().Caches.Current(ctx)
		return l.tooLarge(revision, current)
	case errors.Is(err, storage.ErrCompacted) && l.options.Continue != "":
		expired := apierrors.NewResourceExpired(expiredContinue)
		expired.ErrStatus.ListMeta.Continue, _ = encodeContinue(l.from, l.collection, "/", latestRevision)
		return expired
	}
	return status(err, l.target)
}
