package watchcache

import (
	"context"

	"k8s.io/apimachinery/pkg/watch"

	"quorate.dev/apiserver/encoding"
)

// Type is the kind of change of an object.
type Type uint8

// The types of events of the collection as a whole. A client whose selectors an object begins or ceases to match sees
// an Added or a Deleted event instead of a Modified one.
const (
	Added Type = iota + 1
	Modified
	Deleted
)

// String returns the type as the watch protocol spells it.
func (t Type) String() string {
	switch t {
	case Added:
		return "ADDED"
	case Modified:
		return "MODIFIED"
	case Deleted:
		return "DELETED"
	}
	return "UNKNOWN"
}

// Event is a change of one object. All watchers of the cache share its entries and encodings.
type Event struct {
	Type     Type
	Entry    *Entry // the object after the change; for Deleted, its last state at the revision of the deletion
	Previous *Entry // the object before the change; nil for Added
	Revision int64
	shared   *record
}

// Encoded returns the frame of the watch protocol for the event, with the event type that a client sees: seen differs
// from Type if the object begins or ceases to match the client's selectors. All clients with the same format and the
// same seen share the frame, which the caller must not change. ctx bounds the wait for a conversion webhook.
func (e Event) Encoded(ctx context.Context, format encoding.Format, seen watch.EventType) ([]byte, error) {
	if format.Resource.ConvertsRemotely {
		return e.encodedRemotely(ctx, format, seen)
	}
	return e.shared.encodings.get(e.Entry.cache.budget(), format.Framed(seen), func() ([]byte, error) {
		item, err := e.VisibleState(seen).Encoded(ctx, format)
		if err != nil {
			return nil, err
		}
		return format.Envelope().Frame(seen, item.Bytes()), nil
	})
}

// encodedRemotely is Encoded for resources with a conversion webhook. It calls the webhook before encodings.get,
// because callers that wait in get ignore their contexts.
func (e Event) encodedRemotely(ctx context.Context, format encoding.Format, seen watch.EventType) ([]byte, error) {
	budget, framed := e.Entry.cache.budget(), format.Framed(seen)
	if frame, ok := budget.finished(&e.shared.encodings, framed); ok {
		return frame, nil
	}
	item, err := e.VisibleState(seen).Encoded(ctx, format)
	if err != nil {
		return nil, err
	}
	return e.shared.encodings.get(budget, framed, func() ([]byte, error) {
		return format.Envelope().Frame(seen, item.Bytes()), nil
	})
}

// VisibleState returns the object as a client sees it in the event. If the object ceases to match the client's
// selectors, it is the last state that matched, at the revision of the event; otherwise it is the state after the
// event.
func (e Event) VisibleState(seen watch.EventType) *Entry {
	if seen == watch.Deleted && e.Type != Deleted {
		return detached(e.Previous.deleted(e.Revision))
	}
	return e.Entry
}
