package encoding

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"quorate.dev/apiserver/codec"
)

// Envelope completes items, which do not name their kind, to responses.
type Envelope struct {
	Media codec.Media
	Kind  schema.GroupVersionKind
	// Complete is set where JSON items contain apiVersion and kind.
	Complete bool
}

// Envelope returns the envelope of items in this format.
func (f Format) Envelope() Envelope {
	if f.metadataOnly() {
		return Envelope{Media: f.Media, Kind: f.metaVersion().WithKind("PartialObjectMetadata")}
	}
	return Envelope{Media: f.Media, Kind: f.Resource.Version.Kind, Complete: f.untyped()}
}

// Body returns the body of a response with one object.
func (e Envelope) Body(item []byte) []byte {
	if e.Media == codec.Protobuf {
		const overhead = 96 // of the envelope, for the usual lengths of kinds
		return codec.AppendEnvelope(make([]byte, 0, len(item)+overhead), e.Kind, item)
	}
	body := make([]byte, 0, len(item)+codec.HeadSize(e.Kind)+1)
	return append(codec.AppendObject(body, e.Kind, e.Complete, item), '\n')
}

// Frame returns a frame of a watch stream.
func (e Envelope) Frame(event watch.EventType, item []byte) []byte {
	return codec.WatchFrame(e.Media, string(event), e.Kind, e.Complete, item)
}
