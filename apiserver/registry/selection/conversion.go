package selection

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/fields"

	"quorate.dev/apiserver/watchcache"
)

// This file is the stage of lists and watches that calls conversion webhooks. The labels and selectable fields of an
// object that a webhook converts are known only after its conversion. A webhook is called for many objects at a time,
// because a call takes milliseconds: each function below collects the entries that the following decisions depend on,
// and passes them to the watch cache (watchcache.PrepareAttributes, watchcache.Convert), which converts each entry once
// for all readers and keeps the results. docs/howto/follow-a-conversion.md describes all stages.

// convertChunk is the number of entries that a scan with selectors has converted at a time.
const convertChunk = 500

// NeedsConversion reports whether the selectors depend on more than names, which conversion webhooks cannot change, and
// a webhook converts the resource.
func (f *Filter) NeedsConversion() bool {
	return f.Target.ConvertsRemotely && f.dependsOnContent()
}

// dependsOnContent reports whether the selectors depend on more than names.
func (f *Filter) dependsOnContent() bool {
	if f.Label != nil && !f.Label.Empty() {
		return true
	}
	return f.Field != nil && f.dependsOnOther("")
}

// selectsConverted is Selects for an object that a webhook converts.
func (f *Filter) selectsConverted(ctx context.Context, e *watchcache.Entry) (bool, error) {
	if !f.dependsOnContent() {
		return f.Field == nil || f.Field.Matches(nameFields(e)), nil
	}
	labels, fields, err := e.Attributes(ctx, f.Target.Match)
	if err != nil {
		return false, err
	}
	return (f.Label == nil || f.Label.Matches(labels)) && (f.Field == nil || f.Field.Matches(fields)), nil
}

func nameFields(e *watchcache.Entry) fields.Set {
	return fields.Set{"metadata.name": e.Name(), "metadata.namespace": e.Namespace()}
}

// Prepare has entries converted in few calls, so that Selects calls no webhook for them.
func (f *Filter) Prepare(ctx context.Context, entries []*watchcache.Entry) error {
	if !f.NeedsConversion() {
		return nil
	}
	return watchcache.PrepareAttributes(ctx, f.Target.Match, entries)
}

// scanConverted is Scan for objects that must be converted before they can be selected. It collects all candidates
// first, which costs only pointers, and then converts and selects chunk by chunk, so that a page with a limit converts
// at most convertChunk objects more than it needs.
func (f *Filter) scanConverted(ctx context.Context, snapshot *watchcache.Snapshot, from string, page *Page) error {
	var candidates []*watchcache.Entry
	f.visit(snapshot, from, func(e *watchcache.Entry) bool {
		candidates = append(candidates, e)
		return true
	})
	page.Visited = len(candidates)
	for chunk := range slices.Chunk(candidates, convertChunk) {
		if page.isFull() {
			page.More = true
			return nil
		}
		if err := f.Prepare(ctx, chunk); err != nil {
			return err
		}
		for _, e := range chunk {
			if page.isFull() {
				page.More = true
				return nil
			}
			selected, err := f.Selects(ctx, e)
			if err != nil {
				return err
			}
			if selected {
				page.Entries = append(page.Entries, e)
			}
		}
	}
	return nil
}

// prepareChanges has the states before and after changes converted, so that classify calls no webhook.
func (f *Filter) prepareChanges(ctx context.Context, changes []watchcache.Event) error {
	if !f.NeedsConversion() {
		return nil
	}
	states := make([]*watchcache.Entry, 0, 2*len(changes))
	for _, change := range changes {
		if change.Previous != nil {
			states = append(states, change.Previous)
		}
		if change.Type != watchcache.Deleted {
			states = append(states, change.Entry)
		}
	}
	return f.Prepare(ctx, states)
}

// convertEvents has the objects of events converted, so that their encodings call no webhook.
func (f *Filter) convertEvents(ctx context.Context, events []Event) error {
	if !f.Target.ConvertsRemotely {
		return nil
	}
	var shown []*watchcache.Entry
	for _, event := range events {
		shown = append(shown, event.Entry)
	}
	_, err := watchcache.Convert(ctx, f.Target.Match, shown)
	return err
}
