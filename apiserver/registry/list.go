package registry

import (
	"context"
	"errors"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"quorate.dev/apiserver/request"
	"quorate.dev/apiserver/watchcache"
)

// Selection is which objects of a collection a client wants. Nil selectors select everything. Field selectors are
// in the definition's own spelling.
type Selection struct {
	Label labels.Selector
	Field fields.Selector
}

// everything reports whether nothing is left out.
func (s Selection) everything() bool {
	return (s.Label == nil || s.Label.Empty()) && (s.Field == nil || s.Field.Empty())
}

// matches reports whether an entry is selected.
func (s Selection) matches(e *watchcache.Entry) (bool, error) {
	if s.Label != nil && !s.Label.Empty() && !s.Label.Matches(e.Labels()) {
		return false, nil
	}
	if s.Field == nil || s.Field.Empty() {
		return true, nil
	}
	set, err := e.Fields()
	if err != nil {
		return false, err
	}
	return s.Field.Matches(set), nil
}

// only returns the path of the one object that can be selected in a target's collection, if the selectors name it.
func (s Selection) only(t Target) (path string, ok bool) {
	if s.Field == nil {
		return "", false
	}
	name, named := s.Field.RequiresExactMatch("metadata.name")
	if t.Namespaced && t.Namespace == "" {
		var inNamespace bool
		t.Namespace, inNamespace = s.Field.RequiresExactMatch("metadata.namespace")
		named = named && inNamespace && t.Namespace != ""
	}
	return t.named(name).path(), named && name != ""
}

// ListOptions are a client's options, validated.
type ListOptions struct {
	Selection
	ResourceVersion string
	Match           metav1.ResourceVersionMatch
	Limit           int64
	Continue        string
}

// List is the answer to a list request: entries in key order, at one revision.
type List struct {
	Entries  []*watchcache.Entry
	Revision int64
	// Continue is the token of the rest; empty: there is none.
	Continue string
	// Remaining is how many objects follow; nil: not known.
	Remaining *int64

	held *request.Held // nil: the entries are the cache's
}

// Close gives back the room that a list from storage takes. Its entries must not be used afterwards.
func (l *List) Close() {
	if l.held != nil {
		l.held.Release()
	}
}

const (
	expiredContinue = "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list."
)

// List returns the selected objects of the target's collection. The caller must close the list.
func (r *Registry) List(ctx context.Context, t Target, options ListOptions) (*List, error) {
	if t.Endpoint.Compute != nil {
		return r.listComputed(ctx, t, options.Selection)
	}
	collection := t.collection()
	from := collection
	if options.Continue != "" {
		key, revision, err := decodeContinue(options.Continue, collection)
		if err != nil {
			return nil, apierrors.NewBadRequest("invalid continue token: " + err.Error())
		}
		switch options.ResourceVersion {
		case "":
		case "0":
			options.Limit = 0
		default:
			return nil, apierrors.NewBadRequest("specifying resource version is not allowed when using continue")
		}
		if revision != latestRevision {
			return r.listAt(ctx, t, options, key, revision)
		}
		options.ResourceVersion, from = "", key
	}
	exact, err := exactRevision(options)
	if err != nil {
		return nil, apierrors.NewBadRequest("invalid resource version: " + err.Error())
	}
	if exact > 0 {
		return r.listAt(ctx, t, options, from, exact)
	}
	snapshot, err := r.snapshot(ctx, t, options.ResourceVersion)
	if errors.Is(err, watchcache.ErrTooNew) {
		return r.listPresent(ctx, t, options, from)
	}
	if err != nil {
		return nil, err
	}
	if options.ResourceVersion == "0" {
		options.Limit = 0 // as kube-apiserver does when any state will do
	}
	return r.listSnapshot(ctx, t, options, snapshot, from)
}

// exactRevision returns the one revision that the options ask for, or 0.
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

// scanInterval is how many objects are looked at between two looks at the context.
const scanInterval = 16

// listSnapshot collects a page from a state of the cache.
func (r *Registry) listSnapshot(ctx context.Context, t Target, options ListOptions, snapshot *watchcache.Snapshot, from string) (*List, error) {
	collection := t.collection()
	page := &List{Revision: snapshot.Revision()}
	if options.everything() && options.Limit == 0 {
		page.Entries = make([]*watchcache.Entry, 0, snapshot.Count(collection))
	}
	var more bool
	var failure error
	visited := 0
	visit := func(e *watchcache.Entry) bool {
		if visited++; visited%scanInterval == 0 && ctx.Err() != nil {
			return false
		}
		if options.Limit > 0 && int64(len(page.Entries)) == options.Limit {
			more = true // whether the rest is selected is for the next page to find out
			return false
		}
		var selected bool
		if selected, failure = options.matches(e); selected {
			page.Entries = append(page.Entries, e)
		}
		return failure == nil
	}
	if path, ok := options.only(t); !ok {
		snapshot.Ascend(collection, from, visit)
	} else if e, found := snapshot.Get(path); found && path >= from {
		visit(e)
	}
	if err := ctx.Err(); err != nil {
		return nil, status(err, t)
	}
	if failure != nil {
		return nil, apierrors.NewInternalError(failure)
	}
	if !more {
		return page, nil
	}
	r.cache(t.Match).Retain(snapshot)
	last := page.Entries[len(page.Entries)-1].Path()
	if options.everything() {
		remaining := countAfter(snapshot, collection, last)
		page.Remaining = &remaining
	}
	var err error
	page.Continue, err = encodeContinue(last+firstKeyAfter, collection, page.Revision)
	return page, err
}

// countAfter counts the keys of a collection that follow last.
func countAfter(snapshot *watchcache.Snapshot, collection, last string) (count int64) {
	snapshot.Ascend(collection, last+firstKeyAfter, func(*watchcache.Entry) bool {
		count++
		return true
	})
	return count
}

// Meta is the list's metadata for the client.
func (l *List) Meta() metav1.ListMeta {
	listMeta := metav1.ListMeta{Continue: l.Continue, RemainingItemCount: l.Remaining}
	if l.Revision > 0 { // else it is of objects that are stored nowhere
		listMeta.ResourceVersion = strconv.FormatInt(l.Revision, 10)
	}
	return listMeta
}
