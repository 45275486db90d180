package encoding

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"quorate.dev/apiserver/codec"
)

// Envelope completes items to responses. An item does not contain its kind, unless Complete is set.
type Envelope struct {
	Media codec.Media
	Kind  schema.GroupVersionKind
	// Complete is set if JSON and CBOR items contain apiVersion and kind.
	Complete bool
}

// Envelope returns the envelope for items in this format.
func (f Format) Envelope() Envelope {
	if f.metadataOnly() {
		return Envelope{Media: f.Media, Kind: f.metaVersion().WithKind("PartialObjectMetadata")}
	}
	return Envelope{Media: f.Media, Kind: f.Resource.Version.Kind, Complete: f.untyped()}
}

// Body returns the body of a response that is one object.
func (e Envelope) Body(item []byte) []byte {
	// overhead is the size of a protobuf envelope, or of what CBOR adds to an item, with a kind of usual length.
	const overhead = 96
	switch e.Media {
	case codec.Protobuf:
		return codec.AppendEnvelope(make([]byte, 0, len(item)+overhead), e.Kind, item)
	case codec.CBOR:
		return codec.AppendCBOR(make([]byte, 0, len(item)+overhead), e.Kind, e.Complete, item)
	}
	body := make([]byte, 0, len(item)+codec.HeadSize(e.Kind)+1)
	return append(codec.AppendObject(body, e.Kind, e.Complete, item), '\n')
}

// Frame returns a frame of a watch stream with an event and an item.
func (e Envelope) Frame(event watch.EventType, item []byte) []byte {
	return codec.WatchFrame(e.Media, string(event), e.Kind, e.Complete, item)
}

// AppendFrame appends the frame that Frame returns.
func (e Envelope) AppendFrame(to []byte, event watch.EventType, item codec.Encoding) []byte {
	return codec.AppendWatchFrame(to, e.Media, string(event), e.Kind, e.Complete, item)
}
