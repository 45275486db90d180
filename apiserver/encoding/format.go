package encoding

import (
	"context"
	"strconv"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1beta1 "k8s.io/apimachinery/pkg/apis/meta/v1beta1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"quorate.dev/apiserver/codec"
	"quorate.dev/apiserver/encoding/row"
	"quorate.dev/apiserver/resource"
)

// Shape is the part of an object that a Format shows.
type Shape uint8

const (
	// Whole is the whole object after Definition.Decorate.
	Whole Shape = iota
	// Undecorated is the whole object as it is stored.
	Undecorated
	// Metadata is the PartialObjectMetadata of meta.k8s.io/v1.
	Metadata
	// MetadataV1beta1 is the PartialObjectMetadata of meta.k8s.io/v1beta1.
	MetadataV1beta1
	// Row is a row.Template, of which the object's row of a table is made. Clients cannot ask for it.
	Row
)

// frame is the type of the watch event in whose frame an item is encoded; noFrame for items alone.
type frame uint8

const (
	noFrame frame = iota
	addedFrame
	modifiedFrame
	deletedFrame
)

// Format is one way to encode the objects of a resource. It is comparable and small: caches use it as a key.
type Format struct {
	Resource resource.Match
	// Media is the media type of items. Invariant: it is JSON, Protobuf or CBOR. Callers convert JSON to YAML.
	Media codec.Media
	Shape Shape
	frame frame
}

// Framed returns the format of watch frames for an event type and items in this format. Envelope.Frame encodes such
// frames; Encode does not.
func (f Format) Framed(event watch.EventType) Format {
	switch event {
	case watch.Added:
		f.frame = addedFrame
	case watch.Modified:
		f.frame = modifiedFrame
	default:
		f.frame = deletedFrame
	}
	return f
}

// metadataOnly reports whether items are PartialObjectMetadata.
func (f Format) metadataOnly() bool { return f.Shape == Metadata || f.Shape == MetadataV1beta1 }

// metaVersion returns the version of meta.k8s.io whose PartialObjectMetadata is shown.
func (f Format) metaVersion() schema.GroupVersion {
	if f.Shape == MetadataV1beta1 {
		return metav1beta1.SchemeGroupVersion
	}
	return metav1.SchemeGroupVersion
}

// untyped reports whether objects are runtime.Unstructured, whose encoding contains apiVersion and kind.
func (f Format) untyped() bool { return f.Resource.Source == resource.Custom }

// Encode returns the item for stored bytes at a revision. Revision 0 leaves the resourceVersion as it is, for the
// objects of dry runs, which have none.
func (f Format) Encode(ctx context.Context, stored []byte, revision int64) ([]byte, error) {
	if f.Shape == Row {
		return f.row(ctx, stored, revision)
	}
	external, err := f.load(ctx, stored)
	if err != nil {
		return nil, err
	}
	return f.itemAt(external, revision)
}

// row returns the template of the object's row, as printed from the internal version.
func (f Format) row(ctx context.Context, stored []byte, revision int64) (row.Template, error) {
	internal, err := f.Resource.Version.Codec.Load(ctx, stored)
	if err != nil {
		return nil, err
	}
	if f.Resource.Decorate != nil {
		f.Resource.Decorate(internal)
	}
	accessor, err := meta.Accessor(internal)
	if err != nil {
		return nil, err
	}
	accessor.SetResourceVersion(strconv.FormatInt(revision, 10))
	return row.Make(ctx, f.Resource.Version.Table, internal)
}

// itemAt returns the item of an object with the given revision as its resourceVersion. It changes the object.
func (f Format) itemAt(object runtime.Object, revision int64) ([]byte, error) {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return nil, err
	}
	if revision > 0 {
		accessor.SetResourceVersion(strconv.FormatInt(revision, 10))
	}
	return f.Item(object)
}

// load decodes stored bytes to the object that the item is made of.
func (f Format) load(ctx context.Context, stored []byte) (runtime.Object, error) {
	version := f.Resource.Version
	switch {
	case f.metadataOnly() && version.InternalMetadata:
		return version.Codec.Load(ctx, stored)
	case f.metadataOnly(), f.Shape == Undecorated:
		return version.Codec.LoadExternal(ctx, stored)
	}
	return f.Resource.LoadExternal(ctx, version, stored)
}

// Item returns the item of an object, which is in the served version or, if the format shows metadata, in any
// version. It may change the object.
func (f Format) Item(object runtime.Object) ([]byte, error) {
	if f.metadataOnly() {
		accessor, err := meta.Accessor(object)
		if err != nil {
			return nil, err
		}
		object = codec.Metadata(accessor)
	}
	return codec.Item(f.Media, object)
}

// Trim returns the bytes that must be kept so that Assemble can return the item: nil if the stored bytes suffice.
func (f Format) Trim(item, stored []byte, revision int64) []byte {
	if f.Media != codec.Protobuf {
		return item
	}
	encoding, ok := codec.AsStored(stored, revision, f.metadataOnly())
	if ok && encoding.IsItem(item) {
		return nil
	}
	return item
}

// Assemble returns the item from the result of Trim. An item is never empty, so that an empty argument means that the
// item was trimmed.
func (f Format) Assemble(kept, stored []byte, revision int64) codec.Encoding {
	if len(kept) > 0 {
		return codec.Whole(kept)
	}
	encoding, _ := codec.AsStored(stored, revision, f.metadataOnly())
	return encoding
}

const (
	// jsonFactor is the approximate number of bytes of JSON or CBOR for each byte of protobuf.
	jsonFactor = 2
	// maxMetadata is the approximate maximum number of bytes of an object's metadata.
	maxMetadata = 2 << 10
	// usualRow is the approximate number of bytes of a row's template.
	usualRow = 256
)

// EstimateSize returns the approximate number of bytes of the item for stored bytes, without decoding them.
func (f Format) EstimateSize(stored []byte) int64 {
	if f.Shape == Row {
		return usualRow
	}
	size := int64(len(stored))
	if f.Media != codec.Protobuf && codec.IsProtobuf(stored) {
		size *= jsonFactor
	}
	if f.metadataOnly() {
		size = min(size, maxMetadata)
	}
	return size
}

// List returns the body of a list response with the items.
func (f Format) List(items []codec.Encoding, listMeta metav1.ListMeta) (*codec.ListBody, error) {
	if f.metadataOnly() {
		if len(items) == 0 {
			// kube-apiserver also writes "items": null.
			items = nil
		}
		kind := f.Envelope().Kind
		return codec.NewListBody(f.Media, f.metaVersion().WithKind("PartialObjectMetadataList"), listMeta, &kind, items)
	}
	kind := f.Resource.Version.Kind.GroupVersion().WithKind(f.Resource.ListKind)
	if f.untyped() {
		return codec.NewUntypedListBody(f.Media, kind, listMeta, items)
	}
	return codec.NewListBody(f.Media, kind, listMeta, nil, items)
}
