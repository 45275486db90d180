package selection

import (
	"context"

	"quorate.dev/apiserver/watchcache"
)

// ScanInterval is how many objects a scan visits between two checks of the context.
const ScanInterval = 16

// Page is a page of selected entries, in the order of their paths.
type Page struct {
	Entries []*watchcache.Entry
	// Limit is the largest number of entries; 0: no limit.
	Limit int64
	// Visited is the number of entries that have been read, selected or not.
	Visited int
	// More is set if entries follow the page, selected or not.
	More bool
}

// isFull reports whether the page has as many entries as it may have.
func (p *Page) isFull() bool { return p.Limit > 0 && int64(len(p.Entries)) == p.Limit }

// Scan appends the selected entries of a snapshot to the page until it is full. from is the path at which the page
// starts, inclusive. One entry more than the page needs is visited, to find out whether there is a next page. The cost
// is the number of visited entries: one, the entries of one value of the index, or the rest of the collection.
func (f *Filter) Scan(ctx context.Context, snapshot *watchcache.Snapshot, from string, page *Page) error {
	if f.NeedsConversion() {
		return f.scanConverted(ctx, snapshot, from, page)
	}
	var err error
	var known *watchcache.KnownLabels // nil for the first entries, because many scans visit few
	f.visit(snapshot, from, func(e *watchcache.Entry) bool {
		if page.Visited++; page.Visited%ScanInterval == 0 && ctx.Err() != nil {
			return false
		}
		if page.Visited == ScanInterval {
			known = &watchcache.KnownLabels{}
		}
		if page.isFull() {
			page.More = true
			return false
		}
		var selected bool
		if selected, err = f.selects(ctx, e, known); selected {
			page.Entries = append(page.Entries, e)
		}
		return err == nil
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// visit calls visit with the entries from a path on that may be selected, in the order of their paths: the entry that
// the selector names, the entries with the value of the indexed field, or all entries of the collection.
func (f *Filter) visit(snapshot *watchcache.Snapshot, from string, visit func(*watchcache.Entry) bool) {
	if path, ok := f.Only(); ok {
		if e, found := snapshot.Get(path); found && path >= from {
			visit(e)
		}
		return
	}
	collection := f.Target.Collection()
	field, value, ok := f.indexed()
	if !ok || !snapshot.AscendIndexed(field, value, collection, from, visit) {
		snapshot.Ascend(collection, from, visit)
	}
}
