package handlers

import (
	"errors"
	"strconv"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	"quorate.dev/apiserver/codec"
	"quorate.dev/apiserver/encoding"
	"quorate.dev/apiserver/registry"
	"quorate.dev/apiserver/watchcache"
)

// eventFrame returns the frame of an event. Watches in the same format that see the same change share it.
func (s *stream) eventFrame(event *registry.WatchEvent) ([]byte, error) {
	switch {
	case s.table != nil:
		return s.tableFrame(event.Type, event.VisibleState(event.Type))
	case s.output.list:
		return nil, errNoList
	}
	return event.Encoded(s.r.Context(), s.format, event.Type)
}

// appendInitial appends the ADDED frame of an entry of the initial state. It encodes the frame directly into the
// buffer, because a server to which a thousand clients reconnect sends millions of such frames.
func (s *stream) appendInitial(to []byte, entry *watchcache.Entry) ([]byte, error) {
	switch {
	case s.table != nil:
		frame, err := s.tableFrame(watch.Added, entry)
		return append(to, frame...), err
	case s.output.list:
		return to, errNoList
	}
	item, err := entry.Encoded(s.r.Context(), s.format)
	if err != nil {
		return to, err
	}
	return s.format.Envelope().AppendFrame(to, watch.Added, item), nil
}

// tableFrame returns a frame with the table row of an entry. Few clients watch tables, so that the row is printed for
// each of them.
func (s *stream) tableFrame(kind watch.EventType, entry *watchcache.Entry) ([]byte, error) {
	internal, err := s.Registry.Decode(s.r.Context(), s.target, entry)
	if err != nil {
		return nil, err
	}
	return s.rowFrame(kind, internal)
}

// rowFrame returns a frame with a table of one row. Only the first table of a stream has column definitions.
func (s *stream) rowFrame(kind watch.EventType, internal runtime.Object) ([]byte, error) {
	item, err := s.table.One(s.r.Context(), internal)
	if err != nil {
		return nil, err
	}
	s.table.Options.NoHeaders = true
	envelope := encoding.Envelope{Media: codec.JSON, Kind: s.table.Group.WithKind("Table"), Complete: true}
	return envelope.Frame(kind, item), nil
}

func (s *stream) bookmarkFrame(annotations map[string]string) ([]byte, error) {
	if s.output.list {
		return nil, errNoList
	}
	internal, err := s.bookmarkObject(annotations)
	if err != nil {
		return nil, err
	}
	if s.table != nil {
		return s.rowFrame(watch.Bookmark, internal)
	}
	external := internal
	if s.output.as == whole {
		if external, err = s.target.Version.Codec.External(internal); err != nil {
			return nil, err
		}
	}
	item, err := s.format.Item(external)
	if err != nil {
		return nil, err
	}
	return s.format.Envelope().Frame(watch.Bookmark, item), nil
}

// bookmarkObject returns the object of a bookmark in the internal version: metadata with the revision of the stream.
func (s *stream) bookmarkObject(annotations map[string]string) (runtime.Object, error) {
	internal := s.target.Version.Codec.New()
	accessor, err := meta.Accessor(internal)
	if err != nil {
		return nil, err
	}
	accessor.SetResourceVersion(strconv.FormatInt(s.seen, 10))
	accessor.SetAnnotations(annotations)
	return internal, nil
}

// errNoList ends a watch with "as=PartialObjectMetadataList" at its first event. As in kube-apiserver, the watch is
// established although no event can be encoded.
var errNoList = errors.New("an event is no list")
