package watchcache

import (
	"context"
	"errors"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"quorate.dev/apiserver/codec"
	"quorate.dev/apiserver/encoding"
	"quorate.dev/apiserver/resource"
	"quorate.dev/panics"
)

const (
	// maxConverted bounds the number of objects of one call of a conversion webhook, and maxConvertedBytes the sum of
	// their stored bytes. The last object of a call may exceed the latter.
	maxConverted      = 500
	maxConvertedBytes = 4 << 20
)

// remoteState has the results of a conversion webhook for one entry. It is immutable; changeRemote replaces it.
type remoteState struct {
	// origin is an entry with the same stored bytes at an earlier revision, whose results can be used too; nil: none.
	origin     *Entry
	attributes []attributes
	// private is set for an entry that belongs to one request. Its converted items are kept in items instead of the
	// budget.
	private bool
	items   []convertedItem
}

// attributes has the labels and selectable fields of an object in one version.
type attributes struct {
	version *resource.Version
	labels  labels.Set
	fields  fields.Set
}

// convertedItem is an object that a webhook has converted to a version, in the format encoding.Converted.
type convertedItem struct {
	version *resource.Version
	item    []byte
}

// knownAttributes returns the attributes in a version if the entry or its origin has them.
func (e *Entry) knownAttributes(version *resource.Version) (attributes, bool) {
	state := e.remote.Load()
	if state == nil {
		return attributes{}, false
	}
	for _, known := range state.attributes {
		if known.version == version {
			return known, true
		}
	}
	if state.origin != nil {
		return state.origin.knownAttributes(version)
	}
	return attributes{}, false
}

// changeRemote replaces the remote state by a copy that change has changed. change may be called several times.
func (e *Entry) changeRemote(change func(*remoteState)) {
	for {
		old := e.remote.Load()
		next := remoteState{}
		if old != nil {
			next = *old
		}
		change(&next)
		if e.remote.CompareAndSwap(old, &next) {
			return
		}
	}
}

// converted returns the object in the format encoding.Converted if the entry or its origin has that item.
func (e *Entry) converted(m resource.Match) ([]byte, bool) {
	if item, ok := e.cache.budget().finished(&e.encodings, encoding.Converted(m)); ok {
		return item, true
	}
	state := e.remote.Load()
	if state == nil {
		return nil, false
	}
	if i := slices.IndexFunc(state.items, func(c convertedItem) bool { return c.version == m.Version }); i >= 0 {
		return state.items[i].item, true
	}
	if state.origin == nil {
		return nil, false
	}
	item, ok := state.origin.converted(m)
	if !ok {
		return nil, false
	}
	item, err := encoding.Converted(m).Derive(item, e.revision)
	if err != nil {
		return nil, false
	}
	e.keepConverted(m, item)
	return item, true
}

// keepConverted adds an item in the format encoding.Converted to the entry. The budget may evict it like other
// encodings, unless the entry is private.
func (e *Entry) keepConverted(m resource.Match, item []byte) {
	if state := e.remote.Load(); state != nil && state.private {
		e.changeRemote(func(s *remoteState) {
			s.items = append(slices.Clip(s.items), convertedItem{version: m.Version, item: item})
		})
		return
	}
	_, _ = e.encodings.get(e.cache.budget(), encoding.Converted(m), func() ([]byte, error) { return item, nil })
}

// keepAttributes extracts the attributes of a converted object and keeps them as long as the entry.
func (e *Entry) keepAttributes(m resource.Match, object runtime.Object) (attributes, error) {
	made := attributes{version: m.Version}
	var err error
	if made.labels, made.fields, err = e.cache.extract.Converted(m, object); err != nil {
		return attributes{}, err
	}
	e.changeRemote(func(s *remoteState) {
		known := slices.ContainsFunc(s.attributes, func(a attributes) bool { return a.version == m.Version })
		if !known {
			s.attributes = append(slices.Clip(s.attributes), made)
		}
	})
	return made, nil
}

// Attributes returns the labels and selectable fields of the object in a version that a conversion webhook converts
// the object to. The caller must not change them.
func (e *Entry) Attributes(ctx context.Context, m resource.Match) (labels.Set, fields.Set, error) {
	if known, ok := e.knownAttributes(m.Version); ok {
		return known.labels, known.fields, nil
	}
	object, err := e.Object(ctx, m)
	if err != nil {
		return nil, nil, err
	}
	made, err := e.keepAttributes(m, object)
	return made.labels, made.fields, err
}

// Object returns the object in a version that a conversion webhook converts the object to. The caller owns the
// result.
func (e *Entry) Object(ctx context.Context, m resource.Match) (runtime.Object, error) {
	items, err := Convert(ctx, m, []*Entry{e})
	if err != nil {
		return nil, err
	}
	if items == nil { // the CRD has changed since, and this version needs no webhook
		return m.Version.Codec.LoadExternal(ctx, e.stored)
	}
	return encoding.DecodeConverted(items[0])
}

// encodedRemotely returns the object in a format of a version that a conversion webhook converts the object to.
func (e *Entry) encodedRemotely(ctx context.Context, format encoding.Format) (codec.Encoding, error) {
	if item, ok := e.cache.budget().finished(&e.encodings, format); ok {
		return codec.Whole(item), nil
	}
	items, err := Convert(ctx, format.Resource, []*Entry{e})
	if err != nil {
		return codec.Encoding{}, err
	}
	return e.derived(format, items[0])
}

// derived returns the object in a format, given its item in the format encoding.Converted.
func (e *Entry) derived(format encoding.Format, converted []byte) (codec.Encoding, error) {
	if format.IsConverted() {
		return codec.Whole(converted), nil
	}
	item, err := e.encodings.get(e.cache.budget(), format, func() ([]byte, error) {
		return format.Derive(converted, e.revision)
	})
	if err != nil {
		return codec.Encoding{}, err
	}
	return codec.Whole(item), nil
}

// EncodedAll returns entries in a format, like Entry.Encoded for each of them, but with few calls of a conversion
// webhook. All entries must be of the same cache.
func EncodedAll(ctx context.Context, format encoding.Format, entries []*Entry) ([]codec.Encoding, error) {
	const checkInterval = 16
	items := make([]codec.Encoding, len(entries))
	converted, err := Convert(ctx, format.Resource, entries)
	if err != nil {
		return nil, err
	}
	for i, entry := range entries {
		if i%checkInterval == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if converted != nil && converted[i] != nil {
			items[i], err = entry.derived(format, converted[i])
		} else {
			items[i], err = entry.Encoded(ctx, format)
		}
		if err != nil {
			return nil, err
		}
	}
	return items, nil
}

// PrepareAttributes converts entries, with few calls of a conversion webhook, and keeps their attributes. Attributes
// of these entries then returns without a call.
func PrepareAttributes(ctx context.Context, m resource.Match, entries []*Entry) error {
	var missing []*Entry
	for _, entry := range entries {
		if _, known := entry.knownAttributes(m.Version); !known && m.Version.Codec.Remote(entry.stored) {
			missing = append(missing, entry)
		}
	}
	items, err := Convert(ctx, m, missing)
	if err != nil {
		return err
	}
	for i, entry := range missing {
		object, err := encoding.DecodeConverted(items[i])
		if err != nil {
			return err
		}
		if _, err := entry.keepAttributes(m, object); err != nil {
			return err
		}
	}
	return nil
}

// Convert converts entries to a version with a conversion webhook. It returns their items in the format
// encoding.Converted, nil for the entries that need no webhook, and a nil slice if no entry needs one. All entries
// must be of the same cache. Concurrent readers of an entry share its conversion. ctx bounds the wait, not the call
// of the webhook, because other readers may need its result. If an object fails, the objects after it in the same
// call are converted in further calls.
func Convert(ctx context.Context, m resource.Match, entries []*Entry) ([][]byte, error) {
	if m.Source == resource.BuiltIn || len(entries) == 0 {
		return nil, nil
	}
	calls := &entries[0].cache.caches.calls
	var items [][]byte
	for first := 0; first < len(entries); {
		end, waiting := calls.begin(m, entries, first)
		for _, w := range waiting {
			item, err := w.await(ctx)
			for errors.Is(err, errSkipped) {
				_, again := calls.begin(m, entries[:w.index+1], w.index)
				item, err = again[0].await(ctx)
			}
			if err != nil {
				return nil, err
			}
			if items == nil {
				items = make([][]byte, len(entries))
			}
			items[w.index] = item
		}
		first = end
	}
	return items, nil
}

// errSkipped means that an object was not converted, because an object before it in the same call could not be.
var errSkipped = errors.New("an object before it could not be converted")

// calls has the conversions that are running, so that readers can join them.
type calls struct {
	mu      sync.Mutex // never held together with another lock
	running map[callKey]*conversion
}

type callKey struct {
	entry   *Entry
	version *resource.Version
}

// conversion is the conversion of one entry to one version, as part of a call of a conversion webhook.
type conversion struct {
	entry *Entry
	done  chan struct{} // closed when item or err has been set
	item  []byte
	err   error
}

// waiting is a conversion that one reader waits for, and the index of its entry in the reader's slice.
type waiting struct {
	*conversion
	index int
}

// await waits for the conversion, but not longer than ctx. A conversion that is finished is returned even if ctx has
// ended.
func (w waiting) await(ctx context.Context) ([]byte, error) {
	select {
	case <-w.done:
		return w.item, w.err
	default:
	}
	select {
	case <-w.done:
		return w.item, w.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// begin joins or starts the conversions of the entries from index first on, up to the limits of one call. The
// conversions that it starts are one call in a new goroutine. It returns the conversions to wait for, and the index
// after the last entry that they cover.
func (cs *calls) begin(m resource.Match, entries []*Entry, first int) (end int, all []waiting) {
	var mine []*conversion
	bytes := 0
	for end = first; end < len(entries) && len(mine) < maxConverted && bytes < maxConvertedBytes; end++ {
		entry := entries[end]
		if !m.Version.Codec.Remote(entry.stored) {
			continue
		}
		if item, ok := entry.converted(m); ok {
			all = append(all, waiting{conversion: converted(item), index: end})
			continue
		}
		shared, own := cs.join(callKey{entry: entry, version: m.Version})
		all = append(all, waiting{conversion: shared, index: end})
		if own {
			mine = append(mine, shared)
			bytes += len(entry.stored)
		}
	}
	if len(mine) > 0 {
		go cs.runCaught(m, mine)
	}
	return end, all
}

// converted returns a finished conversion with an item.
func converted(item []byte) *conversion {
	done := make(chan struct{})
	close(done)
	return &conversion{done: done, item: item}
}

// join returns the running conversion of an entry. If there is none, it adds one, which the caller must run.
func (cs *calls) join(key callKey) (shared *conversion, own bool) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if shared = cs.running[key]; shared != nil {
		return shared, false
	}
	shared = &conversion{entry: key.entry, done: make(chan struct{})}
	if cs.running == nil {
		cs.running = map[callKey]*conversion{}
	}
	cs.running[key] = shared
	return shared, true
}

// runCaught calls run. If run panics, its conversions fail with errUnfinished, and the panic is logged.
func (cs *calls) runCaught(m resource.Match, batch []*conversion) {
	err := panics.Catch(func() error {
		cs.run(m, batch)
		return nil
	})
	if err != nil {
		batch[0].entry.cache.caches.log.Error(err, "The conversion of objects panicked", "path", batch[0].entry.cache.path)
	}
}

// run converts a batch of entries and keeps the items. If an object fails, its conversion gets the error, and those
// after it get errSkipped.
func (cs *calls) run(m resource.Match, batch []*conversion) {
	defer cs.finish(m.Version, batch)
	sources := make([]encoding.Source, len(batch))
	for i, conversion := range batch {
		conversion.err = errUnfinished // the error if EncodeAll panics
		sources[i] = encoding.Source{Stored: conversion.entry.stored, Revision: conversion.entry.revision}
	}
	items, err := encoding.Converted(m).EncodeAll(batch[0].entry.cache.caches.ctx, sources)
	for i, conversion := range batch {
		switch {
		case i < len(items):
			conversion.item, conversion.err = items[i], nil
			conversion.entry.keepConverted(m, items[i])
		case i == len(items):
			conversion.err = err
		default:
			conversion.err = errSkipped
		}
	}
}

// finish removes a batch of conversions and wakes their readers.
func (cs *calls) finish(version *resource.Version, batch []*conversion) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for _, conversion := range batch {
		delete(cs.running, callKey{entry: conversion.entry, version: version})
		close(conversion.done)
	}
}
