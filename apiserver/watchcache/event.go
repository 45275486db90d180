package watchcache

import (
	"context"

	"k8s.io/apimachinery/pkg/watch"

	"quorate.dev/apiserver/codec"
	"quorate.dev/apiserver/encoding"
)

// Type is the kind of change of an object.
type Type uint8

// The types of events, of the collection as a whole: selectors of clients may change how they see them.
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

// Event is a change of one object. All watchers share its entries and encodings.
type Event struct {
	Type     Type
	Entry    *Entry // after the change; for Deleted, the last state at the revision of the deletion
	Previous *Entry // before the change; nil for Added
	Revision int64
	shared   *record
}

// Encoded returns the frame of the event as a client sees it, shared by all clients that see it alike: for an object
// that begins or ceases to match a client's selectors, seen differs from Type. The caller must not change the result.
// ctx bounds the wait for a conversion webhook.
func (e Event) Encoded(ctx context.Context, format encoding.Format, seen watch.EventType) ([]byte, error) {
	state := e.VisibleState(seen)
	if format.Remote(state.stored) && e.shared.encodings.find(format.Framed(seen)) == nil {
		// The webhook is called before get: callers that wait there ignore their contexts.
		item, err := state.Encoded(ctx, format)
		if err != nil {
			return nil, err
		}
		return e.framed(format, seen, func() (codec.Encoding, error) { return item, nil })
	}
	return e.framed(format, seen, func() (codec.Encoding, error) { return state.Encoded(ctx, format) })
}

func (e Event) framed(
	format encoding.Format, seen watch.EventType, encode func() (codec.Encoding, error),
) ([]byte, error) {
	return e.shared.encodings.get(e.Entry.cache.budget(), format.Framed(seen), func() ([]byte, error) {
		item, err := encode()
		if err != nil {
			return nil, err
		}
		return format.Envelope().Frame(seen, item.Bytes()), nil
	})
}

// VisibleState returns the state that a client sees in the event: the last one that matched its selectors, at the
// revision of the event, when the object ceases to match.
func (e Event) VisibleState(seen watch.EventType) *Entry {
	if seen == watch.Deleted && e.Type != Deleted {
		return detached(e.Previous.deleted(e.Revision))
	}
	return e.Entry
}
