package codec

import (
	"bytes"
	"encoding/binary"
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
)

// protobufMessage is implemented by generated Go types.
type protobufMessage interface {
	Size() int
	MarshalToSizedBuffer([]byte) (int, error)
}

// Item returns an object's encoding that GET, LIST and WATCH share. A JSON item has no apiVersion and kind where the Go
// type is known, and is complete where it is not; a protobuf item is the message without its envelope. Item clears the
// kind of an object whose encoding omits it.
func Item(media Media, external runtime.Object) ([]byte, error) {
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
	const typeMeta, version, name = 1, 1, 2
	gv := kind.GroupVersion().String()
	to = append(to, protobufMagic...)
	to = protowire.AppendTag(to, typeMeta, protowire.BytesType)
	versionSize := protowire.SizeTag(version) + protowire.SizeBytes(len(gv))
	to = protowire.AppendVarint(to, uint64(versionSize+protowire.SizeTag(name)+protowire.SizeBytes(len(kind.Kind))))
	to = protowire.AppendTag(to, version, protowire.BytesType)
	to = protowire.AppendString(to, gv)
	to = protowire.AppendTag(to, name, protowire.BytesType)
	to = protowire.AppendString(to, kind.Kind)
	to = protowire.AppendTag(to, unknownRaw, protowire.BytesType)
	return protowire.AppendVarint(to, uint64(size))
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
// each protobuf item follows its tag and length.
type ListBody struct {
	media    Media
	head     []byte
	itemHead []byte // spliced into each JSON item; nil: items remain as they are
	items    []Encoding
	tail     []byte
}

const listItems = 2 // field number of items in every list message

// NewListBody prepares a list of items. In JSON, nil items become null and no items become []. itemHead, from Head, is
// spliced into each JSON item; nil: items remain as they are.
func NewListBody(
	media Media, kind schema.GroupVersionKind, meta metav1.ListMeta, itemHead []byte, items []Encoding,
) (*ListBody, error) {
	b := &ListBody{media: media, items: items, itemHead: itemHead}
	if media == Protobuf {
		return b, b.frameProtobuf(kind, meta)
	}
	return b, b.frameJSON(kind, meta)
}

// NewUntypedListBody prepares a JSON list of custom resources, whose items are complete.
func NewUntypedListBody(kind schema.GroupVersionKind, meta metav1.ListMeta, items []Encoding) (*ListBody, error) {
	b := &ListBody{media: JSON, items: items}
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

// Size returns the length of the body in bytes.
func (b *ListBody) Size() int {
	size := len(b.head) + len(b.tail)
	if b.media == Protobuf {
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
	if i > 0 {
		to = append(to, ',')
	}
	return spliceHead(to, b.itemHead, b.items[i].Bytes())
}

// AppendTail appends the list after its items.
func (b *ListBody) AppendTail(to []byte) []byte { return append(to, b.tail...) }

// Len returns the number of items.
func (b *ListBody) Len() int { return len(b.items) }

// WatchFrame returns a frame of a watch stream in JSON or protobuf. complete has the same meaning as in AppendObject.
func WatchFrame(media Media, event string, kind schema.GroupVersionKind, complete bool, item []byte) []byte {
	if media == Protobuf {
		return protobufFrame(event, kind, item)
	}
	const punctuation = 32
	size := len(item) + len(event) + punctuation
	if !complete {
		size += HeadSize(kind)
	}
	frame := make([]byte, 0, size)
	frame = append(frame, `{"type":`...)
	frame = strconv.AppendQuote(frame, event)
	frame = append(frame, `,"object":`...)
	frame = AppendObject(frame, kind, complete, item)
	return append(frame, "}\n"...)
}

// protobufFrame returns a metav1.WatchEvent after its length in four bytes, big endian.
func protobufFrame(event string, kind schema.GroupVersionKind, item []byte) []byte {
	const eventType, eventObject, rawExtension = 1, 2, 1
	object := AppendEnvelope(make([]byte, 0, len(item)+64), kind, item)
	frame := make([]byte, 4, len(object)+32)
	frame = protowire.AppendTag(frame, eventType, protowire.BytesType)
	frame = protowire.AppendString(frame, event)
	frame = protowire.AppendTag(frame, eventObject, protowire.BytesType)
	frame = protowire.AppendVarint(frame, uint64(protowire.SizeTag(rawExtension)+protowire.SizeBytes(len(object))))
	frame = protowire.AppendTag(frame, rawExtension, protowire.BytesType)
	frame = protowire.AppendBytes(frame, object)
	binary.BigEndian.PutUint32(frame, uint32(len(frame)-4))
	return frame
}

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
