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
	"quorate.dev/apiserver/resource"
)

// Shape is the part of an object that a Format shows.
type Shape uint8

const (
	// Whole is the object, completed by Definition.Decorate.
	Whole Shape = iota
	// Undecorated is the object as it is stored.
	Undecorated
	// Metadata is a PartialObjectMetadata of meta.k8s.io/v1.
	Metadata
	// MetadataV1beta1 is a PartialObjectMetadata of meta.k8s.io/v1beta1.
	MetadataV1beta1
)

// frame is the watch event that an encoding is framed as.
type frame uint8

const (
	noFrame frame = iota
	addedFrame
	modifiedFrame
	deletedFrame
)

// Format is one way to encode the objects of a resource. It is comparable, and small enough to be a key: caches find an
// encoding by its Format.
type Format struct {
	Resource resource.Match
	Media    codec.Media // Invariant: JSON or Protobuf. Callers convert JSON to YAML.
	Shape    Shape
	frame    frame
}

// Framed returns the format of watch frames with such an event around items of this format. Its encodings are made by
// Envelope.Frame, not by Encode.
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

// metaVersion is the version of meta.k8s.io that PartialObjectMetadata is shown in.
func (f Format) metaVersion() schema.GroupVersion {
	if f.Shape == MetadataV1beta1 {
		return metav1beta1.SchemeGroupVersion
	}
	return metav1.SchemeGroupVersion
}

// untyped reports whether objects are runtime.Unstructured, whose encoding contains apiVersion and kind.
func (f Format) untyped() bool { return f.Resource.Source == resource.Custom }

// Encode returns the item of stored bytes. Revision 0 leaves the resourceVersion as it is: the object of a dry run has
// none.
func (f Format) Encode(ctx context.Context, stored []byte, revision int64) ([]byte, error) {
	external, err := f.load(ctx, stored)
	if err != nil {
		return nil, err
	}
	return f.itemAt(external, revision)
}

// itemAt returns the item of an object at a revision. It changes the object.
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

// load decodes stored bytes as far as the shape needs it.
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

// Item returns the item of an object of the served version or, for metadata, of any version. It may change the object.
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

// Trim returns what must be kept of an item so that Assemble returns it: nothing where the stored bytes suffice.
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

// Assemble is the reverse of Trim. An item is never empty, so that an empty one was trimmed.
func (f Format) Assemble(kept, stored []byte, revision int64) codec.Encoding {
	if len(kept) > 0 {
		return codec.Whole(kept)
	}
	encoding, _ := codec.AsStored(stored, revision, f.metadataOnly())
	return encoding
}

const (
	// jsonFactor is the approximate number of bytes of JSON for each byte of protobuf.
	jsonFactor = 2
	// maxMetadata is an approximate bound for the bytes of an object's metadata.
	maxMetadata = 2 << 10
)

// EstimateSize returns the approximate number of bytes of the item of stored bytes, without decoding them.
func (f Format) EstimateSize(stored []byte) int64 {
	size := int64(len(stored))
	if f.Media == codec.JSON && codec.IsProtobuf(stored) {
		size *= jsonFactor
	}
	if f.metadataOnly() {
		size = min(size, maxMetadata)
	}
	return size
}

// List returns a list response of items.
func (f Format) List(items []codec.Encoding, listMeta metav1.ListMeta) (*codec.ListBody, error) {
	if f.metadataOnly() {
		if len(items) == 0 {
			items = nil // "items": null, as in kube-apiserver
		}
		head := codec.Head(f.Envelope().Kind)
		return codec.NewListBody(f.Media, f.metaVersion().WithKind("PartialObjectMetadataList"), listMeta, head, items)
	}
	kind := f.Resource.Version.Kind.GroupVersion().WithKind(f.Resource.ListKind)
	if f.untyped() {
		return codec.NewUntypedListBody(kind, listMeta, items)
	}
	return codec.NewListBody(f.Media, kind, listMeta, nil, items)
}
