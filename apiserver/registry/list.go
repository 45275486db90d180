package registry

import (
	"context"
	"errors"
	"slices"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/apiserver/codec"
	"quorate.dev/apiserver/encoding"
	"quorate.dev/apiserver/request"
	"quorate.dev/apiserver/watchcache"
)

// ListOptions are a client's validated options.
type ListOptions struct {
	Selection
	ResourceVersion string
	Match           metav1.ResourceVersionMatch
	Limit           int64
	Continue        string

	// deletion is set for the list of a DeleteCollection, which kube-apiserver reads in pages.
	deletion bool
}

// most returns the largest number of objects that a list of a collection of count objects can have.
func (o ListOptions) most(count int64) int64 {
	if o.Limit > 0 {
		return min(count, o.Limit)
	}
	return count
}

// List is a page of a collection: entries in key order, all at one revision.
type List struct {
	Entries  []*watchcache.Entry
	Revision int64
	// Continue is the token of the next page; empty on the last page.
	Continue string
	// Remaining is the number of objects on the following pages; nil: unknown.
	Remaining *int64

	// held is the share of Registry.listBytes that the entries use; nil if they belong to the watch cache.
	held *request.Held
}

// Encoded returns all entries in a format.
func (l *List) Encoded(ctx context.Context, format encoding.Format) ([]codec.Encoding, error) {
	return watchcache.EncodedAll(ctx, format, l.Entries)
}

// Close releases the memory budget of a list from storage. Its entries must not be used afterwards.
func (l *List) Close() {
	if l.held != nil {
		l.held.Release()
	}
}

// Meta returns the list metadata for clients.
func (l *List) Meta() metav1.ListMeta {
	listMeta := metav1.ListMeta{Continue: l.Continue, RemainingItemCount: l.Remaining}
	if l.Revision > 0 { // computed objects have none
		listMeta.ResourceVersion = strconv.FormatInt(l.Revision, 10)
	}
	return listMeta
}

// storage returns the Storage of the collection.
func (l *listing) storage() *Storage { return l.registry.storageOf(l.target.Match) }

// listing is one List call.
type listing struct {
	registry   *Registry
	target     Target
	options    ListOptions
	collection string // path prefix
	from       string // path at which the page starts, inclusive
	visited    int    // objects that have been read
	evaluated  int    // objects from storage that selectors have been applied to
}

// List returns the selected objects of the target's collection. The caller must close the list.
func (r *Registry) List(ctx context.Context, t Target, options ListOptions) (*List, error) {
	if t.Endpoint.Compute != nil {
		return r.listComputed(ctx, t, options.Selection)
	}
	collection := t.collection()
	l := &listing{registry: r, target: t, options: options, collection: collection, from: collection}
	if options.Continue != "" {
		return l.resume(ctx)
	}
	return l.start(ctx)
}

// resume lists the page that a continue token points to.
func (l *listing) resume(ctx context.Context) (*List, error) {
	key, revision, err := decodeContinue(l.options.Continue, l.collection)
	if err != nil {
		return nil, apierrors.NewBadRequest("invalid continue token: " + err.Error())
	}
	switch l.options.ResourceVersion {
	case "":
	case "0":
		if !l.registry.bypassesCache(l.target) {
			l.options.Limit = 0
		}
	default:
		return nil, apierrors.NewBadRequest("specifying resource version is not allowed when using continue")
	}
	l.from = key
	if revision != latestRevision {
		return l.at(ctx, revision)
	}
	l.options.ResourceVersion = ""
	return l.start(ctx)
}

// start lists a page at the revision that the options ask for.
func (l *listing) start(ctx context.Context) (*List, error) {
	exact, err := exactRevision(l.options)
	if err != nil {
		return nil, apierrors.NewBadRequest("invalid resource version: " + err.Error())
	}
	if exact > 0 {
		return l.at(ctx, exact)
	}
	if l.registry.bypassesCache(l.target) {
		return l.storedAtLeast(ctx)
	}
	if l.delegatesList() {
		return l.latestStored(ctx)
	}
	err = l.registry.awaitInitialized(ctx, l.target)
	if l.options.ResourceVersion == "" && hasUnreadable(err) {
		return l.latestStored(ctx)
	}
	if err != nil {
		return nil, status(err, l.target)
	}
	snapshot, err := l.registry.snapshot(ctx, l.target, l.options.ResourceVersion)
	if errors.Is(err, watchcache.ErrTooNew) {
		return l.latestStored(ctx)
	}
	if err != nil {
		return nil, err
	}
	if l.options.ResourceVersion == "0" {
		l.options.Limit = 0 // like kube-apiserver's cache
	}
	return l.page(ctx, snapshot)
}

// at lists a page at exactly one revision: from the watch cache if it still has the revision, otherwise from storage.
func (l *listing) at(ctx context.Context, revision int64) (*List, error) {
	if l.registry.delegates(l.target) {
		return l.stored(ctx, revision)
	}
	snapshot, err := l.registry.exactSnapshot(ctx, l.target, revision)
	switch {
	case err == nil:
		return l.page(ctx, snapshot)
	case errors.Is(err, watchcache.ErrExpired), errors.Is(err, watchcache.ErrTooNew):
		return l.stored(ctx, revision)
	}
	return nil, status(err, l.target)
}

// exactRevision returns the revision that the options require exactly, or 0.
func exactRevision(options ListOptions) (int64, error) {
	if options.ResourceVersion == "" {
		return 0, nil
	}
	revision, err := parseRevision(options.ResourceVersion)
	legacy := options.Match == "" && options.Limit > 0 && options.Continue == ""
	if err != nil || (options.Match != metav1.ResourceVersionMatchExact && !legacy) {
		return 0, err
	}
	return revision, nil
}

// scanInterval is how many objects a scan visits between two checks of the context.
const scanInterval = 16

// page collects a page from a snapshot of the watch cache.
func (l *listing) page(ctx context.Context, snapshot *watchcache.Snapshot) (*List, error) {
	page := &List{Revision: snapshot.Revision()}
	if l.options.everything() && l.options.Limit == 0 {
		page.Entries = make([]*watchcache.Entry, 0, snapshot.Count(l.collection))
	}
	more, err := l.scan(ctx, snapshot, page)
	if err != nil {
		return nil, err
	}
	l.registry.cache(l.target.Match).CountList(l.visited, len(page.Entries))
	if !more {
		return page, nil
	}
	l.registry.cache(l.target.Match).Retain(snapshot) // for the next page
	last := page.Entries[len(page.Entries)-1].Path()
	if l.options.everything() {
		remaining := countAfter(snapshot, l.collection, last)
		page.Remaining = &remaining
	}
	page.Continue, err = l.continueAfter(last, page.Revision)
	return page, err
}

// scan appends the selected entries to the page until it is full. more reports whether entries follow, selected or
// not.
func (l *listing) scan(ctx context.Context, snapshot *watchcache.Snapshot, page *List) (more bool, err error) {
	if l.target.ConvertsRemotely && l.options.needsConversion() {
		return l.scanConverted(ctx, snapshot, page)
	}
	visit := func(e *watchcache.Entry) bool {
		if l.visited++; l.visited%scanInterval == 0 && ctx.Err() != nil {
			return false
		}
		if l.full(page) {
			more = true
			return false
		}
		var selected bool
		if selected, err = l.options.matches(ctx, l.target, e); selected {
			page.Entries = append(page.Entries, e)
		}
		return err == nil
	}
	if path, ok := l.options.only(l.target); !ok {
		l.options.ascend(l.target, snapshot, l.collection, l.from, visit)
	} else if e, found := snapshot.Get(path); found && path >= l.from {
		visit(e)
	}
	if ctx.Err() != nil {
		return false, status(ctx.Err(), l.target)
	}
	if err != nil {
		return false, internalError(err)
	}
	return more, nil
}

// convertChunk is the number of entries that a list with selectors has converted at a time.
const convertChunk = 500

// scanConverted is scan for objects whose labels and fields depend on a conversion webhook, which gets many of them in
// one call.
func (l *listing) scanConverted(
	ctx context.Context, snapshot *watchcache.Snapshot, page *List,
) (more bool, err error) {
	var candidates []*watchcache.Entry
	collect := func(e *watchcache.Entry) bool {
		candidates = append(candidates, e)
		return true
	}
	if path, ok := l.options.only(l.target); !ok {
		snapshot.Ascend(l.collection, l.from, collect)
	} else if e, found := snapshot.Get(path); found && path >= l.from {
		collect(e)
	}
	l.visited = len(candidates)
	for chunk := range slices.Chunk(candidates, convertChunk) {
		if l.full(page) {
			return true, nil
		}
		if err := l.options.prepare(ctx, l.target, chunk); err != nil {
			return false, internalError(err)
		}
		for _, e := range chunk {
			if l.full(page) {
				return true, nil
			}
			selected, err := l.options.matches(ctx, l.target, e)
			if err != nil {
				return false, internalError(err)
			}
			if selected {
				page.Entries = append(page.Entries, e)
			}
		}
	}
	return false, nil
}

// continueAfter returns the token of the page after a path. That of kube-apiserver's storage layer has no leading slash.
func (l *listing) continueAfter(last string, revision int64) (string, error) {
	slash := "/"
	if l.registry.bypassesCache(l.target) {
		slash = ""
	}
	return encodeContinue(last+firstKeyAfter, l.collection, slash, revision)
}

// full reports whether a page has as many objects as the client wants.
func (l *listing) full(page *List) bool {
	return l.options.Limit > 0 && int64(len(page.Entries)) == l.options.Limit
}

// countAfter counts the paths of a collection after last.
func countAfter(snapshot *watchcache.Snapshot, collection, last string) (count int64) {
	snapshot.Ascend(collection, last+firstKeyAfter, func(*watchcache.Entry) bool {
		count++
		return true
	})
	return count
}
