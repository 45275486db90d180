package selection

import (
	"context"

	"k8s.io/apimachinery/pkg/watch"

	"quorate.dev/apiserver/watchcache"
)

// Event is an event as one client sees it: an update that makes an object match the selectors, or no longer match, is
// ADDED or DELETED.
type Event struct {
	Type watch.EventType
	*watchcache.Event
}

// Events returns the changes that are selected. A conversion webhook gets their objects in few calls, so that encoding
// the events needs no further calls. The events refer to the elements of changes, which the caller must not reuse.
// After an error, the call may be repeated with the same changes.
func (f *Filter) Events(ctx context.Context, changes []watchcache.Event) ([]Event, error) {
	if err := f.prepareChanges(ctx, changes); err != nil {
		return nil, err
	}
	var events []Event
	for i := range changes {
		kind, ok, err := f.classify(ctx, &changes[i])
		if err != nil {
			return nil, err
		}
		if ok {
			events = append(events, Event{Type: kind, Event: &changes[i]})
		}
	}
	return events, f.convertEvents(ctx, events)
}

// classify returns the event type of a change for the selectors, and whether the change is visible at all. It mirrors
// cacheWatcher.convertToWatchEvent: a change is ADDED, MODIFIED or DELETED for a client depending on whether the object
// was selected before it and is selected after it.
func (f *Filter) classify(ctx context.Context, change *watchcache.Event) (watch.EventType, bool, error) {
	if change.Type == watchcache.Deleted {
		was, err := f.Selects(ctx, change.Previous)
		return watch.Deleted, was, err
	}
	is, err := f.Selects(ctx, change.Entry)
	if err != nil {
		return "", false, err
	}
	was, err := f.Selects(ctx, change.Previous)
	switch {
	case err != nil:
		return "", false, err
	case is && was:
		return watch.Modified, true, nil
	case is:
		return watch.Added, true, nil
	case was:
		return watch.Deleted, true, nil
	}
	return "", false, nil
}

// Scope returns which events wake a watcher. Invariant: it includes every event that is selected.
func (f *Filter) Scope() watchcache.Scope {
	s := watchcache.Scope{Namespace: f.Target.Namespace, Name: f.Target.Name}
	if s.Name == "" && f.Field != nil {
		if name, ok := f.Field.RequiresExactMatch("metadata.name"); ok && (!f.Target.Namespaced || f.Target.Namespace != "") {
			s.Name = name
		}
	}
	if s.Name == "" {
		s.Field, s.Value, _ = f.indexed()
	}
	return s
}
