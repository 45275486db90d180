package registry

import (
	"context"
	"errors"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"quorate.dev/apiserver/request"
	"quorate.dev/apiserver/storage"
	"quorate.dev/apiserver/watchcache"
)

const (
	// storedAtOnce bounds the stored bytes that lists from storage hold at the same time, however many they are.
	storedAtOnce = 64 << 20
	// pageBytes is about what is fetched from storage at once.
	pageBytes = 4 << 20
	// smallestPage and largestPage bound how many objects are fetched at once.
	smallestPage, largestPage = 100, 10_000
	// usualSize is taken for the bytes of an object where there is none to go by.
	usualSize = 4 << 10
)

type byteLimit = request.ByteLimit

func newStoredLimit() *byteLimit { return request.NewByteLimit(storedAtOnce) }

// listAt collects a page from the state at exactly one revision: from the cache as far back as it reaches, else from
// storage.
func (r *Registry) listAt(ctx context.Context, t Target, options ListOptions, from string, revision int64) (*List, error) {
	snapshot, err := r.exactSnapshot(ctx, t, revision)
	switch {
	case err == nil:
		return r.listSnapshot(ctx, t, options, snapshot, from)
	case errors.Is(err, watchcache.ErrExpired), errors.Is(err, watchcache.ErrTooNew):
		return r.listStored(ctx, t, options, from, revision)
	}
	return nil, status(err, t)
}

// exactSnapshot returns the state of the collection at exactly a revision. A cache that was dropped meanwhile is replaced
// by a new one, as in snapshot.
func (r *Registry) exactSnapshot(ctx context.Context, t Target, revision int64) (*watchcache.Snapshot, error) {
	for {
		snapshot, err := r.cache(t.Match).Exact(ctx, revision)
		if again, err := r.dropped(t, err); !again || ctx.Err() != nil {
			return snapshot, err
		}
	}
}

// listPresent collects a page from storage, for clients that need the present state while the cache lags behind.
func (r *Registry) listPresent(ctx context.Context, t Target, options ListOptions, from string) (*List, error) {
	revision, err := r.caches.Current(ctx)
	if err != nil {
		return nil, status(err, t)
	}
	return r.listStored(ctx, t, options, from, revision)
}

// listStored collects a page from storage, once there is room for what is read.
func (r *Registry) listStored(ctx context.Context, t Target, options ListOptions, from string, revision int64) (*List, error) {
	page := &List{Revision: revision}
	size := r.cache(t.Match).MeanSize()
	if size == 0 {
		size = usualSize
	}
	count, err := r.store.Count(ctx, t.collection(), from, revision)
	if err == nil {
		page.held, err = r.stored.Acquire(ctx, pageBytes+size*options.most(count))
	}
	if err == nil {
		err = r.fillStored(ctx, t, options, page, from, size)
	}
	if err != nil {
		page.Close()
		return nil, r.listError(ctx, t, options, from, revision, err)
	}
	return page, nil
}

// most is how many of so many objects a list holds at most.
func (o ListOptions) most(count int64) int64 {
	if o.Limit > 0 {
		return min(count, o.Limit)
	}
	return count
}

// fillStored reads a page from storage.
func (r *Registry) fillStored(ctx context.Context, t Target, options ListOptions, page *List, from string, size int64) error {
	cache := r.cache(t.Match)
	for {
		stored, err := r.store.List(ctx, t.collection(), storage.ListOptions{
			Revision: page.Revision, From: from, Limit: pageSize(options, len(page.Entries), size),
		})
		if err != nil {
			return err
		}
		for i, value := range stored.Values {
			if i%scanInterval == 0 && ctx.Err() != nil {
				return ctx.Err()
			}
			from = value.Path + firstKeyAfter
			entry := cache.Detached(value)
			selected, err := options.matches(entry)
			if err != nil {
				return apierrors.NewInternalError(err)
			}
			if selected {
				page.Entries = append(page.Entries, entry)
			}
			if options.Limit > 0 && int64(len(page.Entries)) == options.Limit {
				return finishPage(t, options, page, stored, value.Path)
			}
		}
		if !stored.More {
			return nil
		}
	}
}

// pageSize is how many objects, of about so many bytes each, to fetch from storage at once, having some: no more than are
// wanted when nothing is filtered out.
func pageSize(options ListOptions, having int, size int64) int64 {
	count := min(max(pageBytes/max(size, 1), smallestPage), largestPage)
	if options.Limit > 0 && options.everything() {
		return min(options.Limit-int64(having), count)
	}
	return count
}

// finishPage adds the continue token to a page that is full after the object at last.
func finishPage(t Target, options ListOptions, page *List, stored storage.Page, last string) (err error) {
	if !stored.More && strings.HasSuffix(stored.Values[len(stored.Values)-1].Path, last) {
		return nil
	}
	if options.everything() {
		remaining := stored.Remaining
		page.Remaining = &remaining
	}
	page.Continue, err = encodeContinue(last+firstKeyAfter, t.collection(), page.Revision)
	return err
}

// listError explains why a revision cannot be listed. A client in the middle of a paged list is offered to go on
// with the present state.
func (r *Registry) listError(ctx context.Context, t Target, options ListOptions, from string, revision int64, err error) error {
	switch {
	case errors.Is(err, storage.ErrFuture):
		current, _ := r.caches.Current(ctx)
		return tooLarge(revision, current)
	case errors.Is(err, storage.ErrCompacted) && options.Continue != "":
		expired := apierrors.NewResourceExpired(expiredContinue)
		expired.ErrStatus.ListMeta.Continue, _ = encodeContinue(from, t.collection(), latestRevision)
		return expired
	}
	return status(err, t)
}
