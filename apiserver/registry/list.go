package registry

import (
	"context"
	"errors"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/apiserver/codec"
	"quorate.dev/apiserver/encoding"
	"quorate.dev/apiserver/registry/selection"
	"quorate.dev/apiserver/request"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/watchcache"
)

// Selection selects objects of a collection.
type Selection = selection.Selection

// ParseShard parses a shardSelector of a client.
func ParseShard(text string) (*selection.Shard, error) { return selection.ParseShard(text) }

// ListOptions are a client's validated options. The combination of ResourceVersion, Match, Limit and Continue selects
// the revision and the source of the list as kube-apiserver's ShouldDelegateList does; the package documentation has a
// table.
type ListOptions struct {
	Selection
	ResourceVersion string                      // "": the current state; "0": any cached state
	Match           metav1.ResourceVersionMatch // "" with a Limit and a ResourceVersion above 0 means exact
	Limit           int64                       // largest number of objects of the page; 0: no limit
	Continue        string                      // token of the page; "": the first page

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
	// Shard is the shard of which the list has objects; nil: all objects.
	Shard *selection.Shard

	// needsCache is set if kube-apiserver refuses the list while its watch cache cannot be initialized.
	needsCache bool
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
	if l.Shard != nil {
		listMeta.ShardInfo = &metav1.ShardInfo{Selector: l.Shard.Text}
	}
	return listMeta
}

// storage returns the Storage of the collection.
func (l *listing) storage() *Storage { return l.registry.storageOf(l.target.Match) }

// listing is one List call. resume and start adjust options: kube-apiserver's cache ignores the limit of a list with
// resourceVersion=0, and so does the watch cache here.
type listing struct {
	registry   *Registry
	target     resource.Target
	options    ListOptions
	filter     selection.Filter
	collection string // path prefix
	from       string // path at which the page starts, inclusive
	visited    int    // objects that have been read from storage
	evaluated  int    // objects from storage that selectors have been applied to
}

// List returns the selected objects of the target's collection. The caller must close the list.
func (r *Registry) List(ctx context.Context, t resource.Target, options ListOptions) (*List, error) {
	if t.Endpoint.Compute != nil {
		return r.listComputed(ctx, t, options.Selection)
	}
	l := r.newListing(t, options)
	if len(t.Versions) == 0 { // a custom resource that is not served has no watch cache
		return l.latestStored(ctx)
	}
	if options.Continue != "" {
		return l.resume(ctx)
	}
	return l.start(ctx)
}

// newListing returns a list of the target's collection from its beginning. A name of the target is ignored.
func (r *Registry) newListing(t resource.Target, options ListOptions) *listing {
	collection := t.Collection()
	return &listing{
		registry: r, target: t, options: options, filter: selection.Filter{Selection: options.Selection, Target: t.Named("")},
		collection: collection, from: collection,
	}
}

// resume lists the page that a continue token points to: at the revision of the token or, for a token of storedError,
// at the current one. It mirrors storage.ValidateListOptions.
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

// start lists a page at the revision that the options ask for, from the watch cache if possible. The package
// documentation has its decisions as a table.
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
		return l.lagging(ctx, err)
	}
	if err != nil {
		return nil, err
	}
	if l.options.ResourceVersion == "0" {
		l.options.Limit = 0 // like kube-apiserver's cache
	}
	page, err := l.page(ctx, snapshot)
	if page == nil {
		return nil, l.unconvertible(ctx, snapshot, err)
	}
	page.needsCache = !l.mayDelegate()
	return page, err
}

// laggingRetry is the number of seconds after which a client repeats a list that has failed because the cache lags.
const laggingRetry = 1

// lagging answers a consistent list whose cache did not become current in time: from storage or, with the feature gate
// ConsistentListFromCacheSkipTimeoutFallback, with an error after which the client retries.
func (l *listing) lagging(ctx context.Context, late error) (*List, error) {
	if !watchcache.SkipsFallback() || !l.storage().Store.SupportsProgress() {
		return l.latestStored(ctx)
	}
	text := late.Error()
	return nil, apierrors.NewTooManyRequests(strings.ToUpper(text[:1])+text[1:], laggingRetry)
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

// exactRevision returns the revision that the options require exactly, or 0. A limit with a resourceVersion and without
// a match is the legacy form of an exact request ("Legacy exact match" in ShouldDelegateList).
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

// page collects a page from a snapshot of the watch cache; listing.stored is its counterpart for storage. Without
// selectors a page costs O(page), or O(rest of the collection) if the client gets the number of remaining objects.
func (l *listing) page(ctx context.Context, snapshot *watchcache.Snapshot) (*List, error) {
	selected := selection.Page{Limit: l.options.Limit}
	if l.options.Everything() && l.options.Limit == 0 {
		selected.Entries = make([]*watchcache.Entry, 0, snapshot.Count(l.collection))
	}
	err := l.filter.Scan(ctx, snapshot, l.from, &selected)
	if ctx.Err() != nil {
		return nil, status(ctx.Err(), l.target)
	}
	if err != nil {
		return nil, internalError(err)
	}
	page := &List{Entries: selected.Entries, Revision: snapshot.Revision(), Shard: l.options.Shard}
	l.registry.Cache(l.target.Match).CountList(selected.Visited, len(page.Entries))
	if !selected.More {
		return page, nil
	}
	l.registry.Cache(l.target.Match).Retain(snapshot) // for the next page
	last := page.Entries[len(page.Entries)-1].Path()
	if l.options.Everything() {
		remaining := countAfter(snapshot, l.collection, last)
		page.Remaining = &remaining
	}
	page.Continue, err = l.continueAfter(last, page.Revision)
	return page, err
}

// continueAfter returns the token of the page after a path. Tokens of kube-apiserver's Cacher have a leading slash,
// tokens of its storage layer have none; both servers accept both forms.
func (l *listing) continueAfter(last string, revision int64) (string, error) {
	slash := "/"
	if l.registry.bypassesCache(l.target) {
		slash = ""
	}
	return encodeContinue(last+firstKeyAfter, l.collection, slash, revision)
}

// countAfter counts the paths of a collection after last.
func countAfter(snapshot *watchcache.Snapshot, collection, last string) (count int64) {
	snapshot.Ascend(collection, last+firstKeyAfter, func(*watchcache.Entry) bool {
		count++
		return true
	})
	return count
}
