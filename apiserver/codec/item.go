package codec

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Media is the media type of a body.
type Media uint8

// The media types of objects.
const (
	JSON Media = iota
	Protobuf
	YAML
	CBOR
)

// protobufMessage is implemented by generated Go types.
type protobufMessage interface {
	Size() int
	MarshalToSizedBuffer([]byte) (int, error)
}

// Item returns an object's encoding that GET, LIST and WATCH share. A JSON or CBOR item has no apiVersion and kind
// where the Go type is known, and is complete where it is not; a protobuf item is the message without its envelope.
// Item clears the kind of an object whose encoding omits it.
func Item(media Media, external runtime.Object) ([]byte, error) {
	if media == CBOR {
		return cborItem(external)
	}
	if media == Protobuf {
		message, ok := external.(protobufMessage)
		if !ok {
			return nil, fmt.Errorf("%T has no protobuf form", external)
		}
		data := make([]byte, message.Size())
		_, err := message.MarshalToSizedBuffer(data)
		return data, err
	}
	if _, untyped := external.(runtime.Unstructured); !untyped {
		external.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	}
	return json.Marshal(external)
}

// Head returns the beginning of a complete JSON object, up to the fields of its item.
func Head(kind schema.GroupVersionKind) []byte {
	return AppendHead(make([]byte, 0, HeadSize(kind)), kind)
}

// AppendHead appends the beginning of a complete JSON object.
func AppendHead(to []byte, kind schema.GroupVersionKind) []byte {
	to = strconv.AppendQuote(append(to, `{"kind":`...), kind.Kind)
	to = append(to, `,"apiVersion":"`...)
	if kind.Group != "" {
		to = append(append(to, kind.Group...), '/')
	}
	return append(append(to, kind.Version...), `",`...)
}

// HeadSize returns an upper bound for the length of Head.
func HeadSize(kind schema.GroupVersionKind) int {
	const punctuation = len(`{"kind":"","apiVersion":"/",`)
	return punctuation + len(kind.Kind) + len(kind.Group) + len(kind.Version)
}

// AppendCBOR appends a complete object as self-described CBOR, given its item. complete has the same meaning as in
// AppendObject.
func AppendCBOR(to []byte, kind schema.GroupVersionKind, complete bool, item []byte) []byte {
	return appendCBORObject(append(to, cborMagic...), kind, complete, item)
}

// AppendObject appends a complete JSON object, given its item. complete is set if the item has apiVersion and kind
// already.
func AppendObject(to []byte, kind schema.GroupVersionKind, complete bool, item []byte) []byte {
	if complete {
		return append(to, item...)
	}
	return append(AppendHead(to, kind), item[1:]...)
}

// spliceHead appends a JSON item after a head; a nil head leaves the item as it is.
func spliceHead(to, head, item []byte) []byte {
	if head == nil {
		return append(to, item...)
	}
	return append(append(to, head...), item[1:]...)
}

// AppendEnvelope appends a protobuf message in the envelope that names its kind.
func AppendEnvelope(to []byte, kind schema.GroupVersionKind, message []byte) []byte {
	to = appendEnvelopeHead(to, kind, len(message))
	return appendEnvelopeTail(append(to, message...))
}

// appendEnvelopeHead appends magic, runtime.Unknown.typeMeta, and the tag and length of raw.
func appendEnvelopeHead(to []byte, kind schema.GroupVersionKind, size int) []byte {
	to = append(to, protobufMagic...)
	to = protowire.AppendTag(to, unknownTypeMeta, protowire.BytesType)
	to = protowire.AppendVarint(to, uint64(typeMetaSize(kind)))
	to = protowire.AppendTag(to, typeMetaVersion, protowire.BytesType)
	to = protowire.AppendVarint(to, uint64(versionSize(kind)))
	if kind.Group != "" {
		to = append(append(to, kind.Group...), '/')
	}
	to = append(to, kind.Version...)
	to = protowire.AppendTag(to, typeMetaKind, protowire.BytesType)
	to = protowire.AppendString(to, kind.Kind)
	to = protowire.AppendTag(to, unknownRaw, protowire.BytesType)
	return protowire.AppendVarint(to, uint64(size))
}

// These are field numbers of runtime.TypeMeta.
const (
	typeMetaVersion = 1
	typeMetaKind    = 2
)

// versionSize returns the length of the group and version of a kind as text.
func versionSize(kind schema.GroupVersionKind) int {
	if kind.Group == "" {
		return len(kind.Version)
	}
	return len(kind.Group) + 1 + len(kind.Version)
}

// typeMetaSize returns the length of the runtime.TypeMeta of a kind.
func typeMetaSize(kind schema.GroupVersionKind) int {
	return protowire.SizeTag(typeMetaVersion) + protowire.SizeBytes(versionSize(kind)) +
		protowire.SizeTag(typeMetaKind) + protowire.SizeBytes(len(kind.Kind))
}

// envelopeSize returns the length of the envelope of a message of the given size, with the message.
func envelopeSize(kind schema.GroupVersionKind, size int) int {
	const tail = 4 // length of what appendEnvelopeTail appends
	return len(protobufMagic) + protowire.SizeTag(unknownTypeMeta) + protowire.SizeBytes(typeMetaSize(kind)) +
		protowire.SizeTag(unknownRaw) + protowire.SizeBytes(size) + tail
}

// appendEnvelopeTail appends the empty contentEncoding and contentType that upstream writes.
func appendEnvelopeTail(to []byte) []byte {
	const contentEncoding, contentType = 3, 4
	to = protowire.AppendTag(to, contentEncoding, protowire.BytesType)
	to = protowire.AppendString(to, "")
	to = protowire.AppendTag(to, contentType, protowire.BytesType)
	return protowire.AppendString(to, "")
}

// ListBody is a list response around items that are shared with other responses. JSON items are separated by commas;
// each protobuf item follows its tag and length; CBOR items follow the length of their array.
type ListBody struct {
	media    Media
	head     []byte
	itemHead []byte // spliced into each JSON or CBOR item; nil: items remain as they are
	items    []Encoding
	tail     []byte
}

const listItems = 2 // field number of items in every list message

// NewListBody prepares a list of items. In JSON and CBOR, nil items become null and no items become []. itemKind is the
// kind of the items if the list must name it in each of them; nil: items remain as they are.
func NewListBody(
	media Media, kind schema.GroupVersionKind, meta metav1.ListMeta, itemKind *schema.GroupVersionKind, items []Encoding,
) (*ListBody, error) {
	b := &ListBody{media: media, items: items}
	switch media {
	case Protobuf:
		return b, b.frameProtobuf(kind, meta)
	case CBOR:
		if itemKind != nil {
			b.itemHead = cborHead(*itemKind)
		}
		return b, b.frameCBOR(kind, meta)
	}
	if itemKind != nil {
		b.itemHead = Head(*itemKind)
	}
	return b, b.frameJSON(kind, meta)
}

// NewUntypedListBody prepares a list of custom resources, whose items are complete, in JSON or CBOR.
func NewUntypedListBody(
	media Media, kind schema.GroupVersionKind, meta metav1.ListMeta, items []Encoding,
) (*ListBody, error) {
	b := &ListBody{media: media, items: items}
	if media == CBOR {
		return b, b.frameCBOR(kind, untypedListMeta{meta, meta.Continue})
	}
	return b, b.frameJSON(kind, untypedListMeta{meta, meta.Continue})
}

func (b *ListBody) frameJSON(kind schema.GroupVersionKind, meta any) error {
	encoded, err := json.Marshal(meta)
	if err != nil {
		return err
	}
	b.head = append(Head(kind), `"metadata":`...)
	b.head = append(b.head, encoded...)
	if b.items == nil {
		b.tail = []byte(`,"items":null}` + "\n")
		return nil
	}
	b.head = append(b.head, `,"items":[`...)
	b.tail = []byte("]}\n")
	return nil
}

// untypedListMeta is the metadata of a list of custom resources. Unlike the metadata of typed lists, it contains an
// empty "continue".
type untypedListMeta struct {
	metav1.ListMeta
	Continue string `json:"continue"`
}

func (b *ListBody) frameProtobuf(kind schema.GroupVersionKind, meta metav1.ListMeta) error {
	encoded, err := meta.Marshal()
	if err != nil {
		return err
	}
	size := protowire.SizeTag(objectMetadata) + protowire.SizeBytes(len(encoded))
	for _, item := range b.items {
		size += protowire.SizeTag(listItems) + protowire.SizeBytes(item.Size())
	}
	b.head = appendEnvelopeHead(nil, kind, size)
	b.head = protowire.AppendTag(b.head, objectMetadata, protowire.BytesType)
	b.head = protowire.AppendBytes(b.head, encoded)
	b.tail = appendEnvelopeTail(nil)
	return nil
}

// Size returns the length of the body in bytes, or an upper bound of it in CBOR.
func (b *ListBody) Size() int {
	size := len(b.head) + len(b.tail)
	switch b.media {
	case CBOR:
		return b.cborSize()
	case Protobuf:
		for _, item := range b.items {
			size += protowire.SizeTag(listItems) + protowire.SizeBytes(item.Size())
		}
		return size
	}
	for _, item := range b.items {
		size += item.Size()
	}
	if b.itemHead != nil {
		size += len(b.items) * (len(b.itemHead) - 1)
	}
	return size + max(len(b.items)-1, 0)
}

// AppendHead appends the list up to its items.
func (b *ListBody) AppendHead(to []byte) []byte { return append(to, b.head...) }

// AppendItem appends the i-th item and its separator from the one before.
func (b *ListBody) AppendItem(to []byte, i int) []byte {
	if b.media == Protobuf {
		to = protowire.AppendTag(to, listItems, protowire.BytesType)
		to = protowire.AppendVarint(to, uint64(b.items[i].Size()))
		return b.items[i].AppendTo(to)
	}
	if b.media == CBOR {
		return spliceCBOR(to, b.itemHead, b.items[i].Bytes())
	}
	if i > 0 {
		to = append(to, ',')
	}
	return spliceHead(to, b.itemHead, b.items[i].Bytes())
}

// AppendTail appends the list after its items.
func (b *ListBody) AppendTail(to []byte) []byte { return append(to, b.tail...) }

// Len returns the number of items.
func (b *ListBody) Len() int { return len(b.items) }

// Metadata returns the metadata of an object.
func Metadata(object metav1.Object) *metav1.PartialObjectMetadata {
	if typed, ok := object.(*metav1.ObjectMeta); ok {
		return &metav1.PartialObjectMetadata{ObjectMeta: *typed}
	}
	return &metav1.PartialObjectMetadata{ObjectMeta: copyMetadata(object)}
}

func copyMetadata(object metav1.Object) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name:                       object.GetName(),
		GenerateName:               object.GetGenerateName(),
		Namespace:                  object.GetNamespace(),
		SelfLink:                   object.GetSelfLink(),
		UID:                        object.GetUID(),
		ResourceVersion:            object.GetResourceVersion(),
		Generation:                 object.GetGeneration(),
		CreationTimestamp:          object.GetCreationTimestamp(),
		DeletionTimestamp:          object.GetDeletionTimestamp(),
		DeletionGracePeriodSeconds: object.GetDeletionGracePeriodSeconds(),
		Labels:                     object.GetLabels(),
		Annotations:                object.GetAnnotations(),
		OwnerReferences:            object.GetOwnerReferences(),
		Finalizers:                 object.GetFinalizers(),
		ManagedFields:              object.GetManagedFields(),
	}
}

// Indent returns JSON indented by two spaces.
func Indent(body []byte) ([]byte, error) {
	b := bytes.NewBuffer(make([]byte, 0, len(body)+len(body)/4)) // few bodies grow by more
	err := json.Indent(b, body, "", "  ")
	return b.Bytes(), err
}
