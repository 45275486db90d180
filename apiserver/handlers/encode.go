package handlers

import (
	"strconv"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"quorate.dev/apiserver/codec"
	"quorate.dev/apiserver/watchcache"
)

// encoder makes and finds the shared encodings of one resource version in one output.
type encoder struct {
	call   *call
	media  codec.Media
	kind   schema.GroupVersionKind
	head   []byte // spliced into JSON items; nil where items are complete
	inList []byte // the same within a list

	formats *[frames]watchcache.Format
}

// encoder returns the encoder of whole objects or of their metadata.
func (c *call) encoder() encoder {
	e := encoder{call: c, media: c.output.media, kind: c.target.Version.Kind}
	if e.media == codec.YAML {
		e.media = codec.JSON
	}
	e.formats = formatsOf(c.target.Version).of(e.media, c.output)
	switch {
	case c.output.as == metadataOnly:
		e.kind = c.output.group.WithKind("PartialObjectMetadata")
		e.head = codec.Head(e.kind)
		e.inList = e.head
	case !c.untyped():
		e.head = codec.Head(e.kind)
	}
	return e
}

// untyped reports whether objects encode with their own apiVersion and kind in them.
func (c *call) untyped() bool {
	_, untyped := c.target.Version.Codec.NewExternal().(runtime.Unstructured)
	return untyped
}

// item returns the bytes of an entry's encoding.
func (e *encoder) item(entry *watchcache.Entry) ([]byte, error) {
	encoding, err := e.encoding(entry)
	return encoding.Bytes(), err
}

// encoding returns the encoding of an entry, made now if nobody has asked for it yet.
func (e *encoder) encoding(entry *watchcache.Entry) (codec.Encoding, error) {
	kept, err := entry.Encoded(&e.formats[frameNone], func() ([]byte, error) {
		item, err := e.encode(entry.Stored(), entry.Revision())
		if err != nil {
			return nil, err
		}
		return e.kept(item, entry.Stored(), entry.Revision()), nil
	})
	if err != nil || len(kept) > 0 {
		return codec.Whole(kept), err
	}
	encoding, _ := codec.AsStored(entry.Stored(), entry.Revision(), e.call.output.as == metadataOnly)
	return encoding, nil
}

// kept is what the cache keeps of an item: nothing if it can be put together from what is stored.
func (e *encoder) kept(item, stored []byte, revision int64) []byte {
	if e.media != codec.Protobuf {
		return item
	}
	encoding, ok := codec.AsStored(stored, revision, e.call.output.as == metadataOnly)
	if ok && encoding.IsItem(item) {
		return nil
	}
	return item
}

// encode makes the item of stored bytes.
func (e *encoder) encode(stored []byte, revision int64) ([]byte, error) {
	external, err := e.load(stored)
	if err != nil {
		return nil, err
	}
	accessor, err := meta.Accessor(external)
	if err != nil {
		return nil, err
	}
	if revision > 0 { // else it is of a rehearsal
		accessor.SetResourceVersion(strconv.FormatInt(revision, 10))
	}
	return e.external(external)
}

// load decodes what is to be shown of an object.
func (e *encoder) load(stored []byte) (runtime.Object, error) {
	target := &e.call.target
	switch {
	case e.call.output.as == metadataOnly && target.Version.InternalMetadata:
		return target.Version.Codec.Load(stored)
	case e.call.output.as == metadataOnly, e.call.output.undecorated:
		return target.Version.Codec.LoadExternal(stored)
	}
	return target.LoadExternal(target.Version, stored)
}

// external makes the item of an object of the served version.
func (e *encoder) external(external runtime.Object) ([]byte, error) {
	if e.call.output.as == metadataOnly {
		accessor, err := meta.Accessor(external)
		if err != nil {
			return nil, err
		}
		external = codec.Metadata(accessor)
	}
	return codec.Item(e.media, external)
}

// body completes an item to a response of its own.
func (e *encoder) body(item []byte) []byte {
	if e.media == codec.Protobuf {
		return codec.AppendEnvelope(make([]byte, 0, len(item)+96), e.kind, item)
	}
	body := make([]byte, 0, len(item)+len(e.head)+1)
	return append(codec.AppendObject(body, e.head, item), '\n')
}

// encodeInterval is how many objects are encoded between two looks at the context.
const encodeInterval = 16

// items returns the encodings of a page.
func (e *encoder) items(entries []*watchcache.Entry) ([]codec.Encoding, error) {
	items := make([]codec.Encoding, len(entries))
	ctx := e.call.r.Context()
	for i, entry := range entries {
		if i%encodeInterval == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		var err error
		if items[i], err = e.encoding(entry); err != nil {
			return nil, err
		}
	}
	return items, nil
}

// listKind is the kind of a list of what the encoder makes.
func (e *encoder) listKind() schema.GroupVersionKind {
	if e.call.output.as == metadataOnly {
		return e.call.output.group.WithKind("PartialObjectMetadataList")
	}
	return e.kind.GroupVersion().WithKind(e.call.target.ListKind)
}

func (e *encoder) list(entries []*watchcache.Entry, listMeta metav1.ListMeta) (*codec.ListBody, error) {
	items, err := e.items(entries)
	if err != nil {
		return nil, err
	}
	if e.call.output.as == metadataOnly && len(items) == 0 {
		items = nil // as kube-apiserver has it
	}
	if e.call.output.as == whole && e.call.untyped() {
		return codec.NewUntypedListBody(e.listKind(), listMeta, items)
	}
	return codec.NewListBody(e.media, e.listKind(), listMeta, e.inList, items)
}
