package codec

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
)

// cborMagic begins every response, watch event and stored object in CBOR: the head of tag 55799, "self-described
// CBOR".
var cborMagic = []byte{0xd9, 0xd9, 0xf7}

// IsCBOR reports whether an object is encoded as self-described CBOR.
func IsCBOR(data []byte) bool { return bytes.HasPrefix(data, cborMagic) }

// cborItem returns an object as a CBOR map without cborMagic. Its keys are sorted, so that equal objects have equal
// bytes; kube-apiserver does not sort the keys of responses.
func cborItem(external runtime.Object) ([]byte, error) {
	if untyped, ok := external.(runtime.Unstructured); ok {
		return direct.Marshal(untyped.UnstructuredContent())
	}
	external.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{})
	return direct.Marshal(external)
}

// cborHead returns the entries of a CBOR map that name a kind, without the head of the map.
func cborHead(kind schema.GroupVersionKind) []byte {
	head := make([]byte, 0, HeadSize(kind)+4*cborHeadSize)
	for _, text := range []string{"kind", kind.Kind, "apiVersion", kind.GroupVersion().String()} {
		head = appendCBORString(head, text)
	}
	return head
}

// spliceCBOR appends a CBOR item with the entries of cborHead before its own; a nil head leaves the item as it is.
func spliceCBOR(to, head, item []byte) []byte {
	kind, entries, rest, ok := cborToken(item)
	if head == nil || !ok || kind != cborMap {
		return append(to, item...)
	}
	const added = 2 // kind and apiVersion
	to = appendCBORHead(to, cborMap, entries+added)
	return append(append(to, head...), rest...)
}

// appendCBORObject appends a complete object without cborMagic, given its item.
func appendCBORObject(to []byte, kind schema.GroupVersionKind, complete bool, item []byte) []byte {
	if complete {
		return append(to, item...)
	}
	return spliceCBOR(to, cborHead(kind), item)
}

// frameCBOR sets the parts of a CBOR list that surround its items.
func (b *ListBody) frameCBOR(kind schema.GroupVersionKind, meta any) error {
	encoded, err := direct.Marshal(meta)
	if err != nil {
		return err
	}
	const fields = 4
	b.head = appendCBORHead(append(b.head, cborMagic...), cborMap, fields)
	b.head = append(b.head, cborHead(kind)...)
	b.head = append(appendCBORString(b.head, "metadata"), encoded...)
	b.head = appendCBORString(b.head, "items")
	if b.items == nil {
		b.head = append(b.head, cborNull)
		return nil
	}
	b.head = appendCBORHead(b.head, cborArray, uint64(len(b.items)))
	return nil
}

// cborSize returns the length of a CBOR list in bytes, or a few bytes more for items with head: the head of a map may
// grow with the number of its entries.
func (b *ListBody) cborSize() int {
	size := len(b.head)
	for _, item := range b.items {
		size += item.Size()
	}
	if b.itemHead != nil {
		size += len(b.items) * (len(b.itemHead) + 1)
	}
	return size
}

// CBORToJSON converts a CBOR value to JSON.
func CBORToJSON(data []byte) ([]byte, error) {
	var value any
	if err := direct.Unmarshal(data, &value); err != nil {
		return nil, err
	}
	return json.Marshal(value)
}

// The major types of CBOR data items, and the item null.
const (
	cborUnsigned = iota
	cborNegative
	cborBytes
	cborText
	cborArray
	cborMap
	cborTag
	cborSimple

	cborNull = 0xf6
)

const (
	// cborHeadSize is the maximum length of the head of a data item in bytes.
	cborHeadSize = 9
	// cborInline is the first additional information of a head that says how many bytes the argument has, instead of
	// being the argument: from cborInline on, 1, 2, 4 and 8.
	cborInline = 24
	// cborIndefinite is the additional information of an item of indefinite length, and of its end.
	cborIndefinite = 31
)

// appendCBORHead appends the head of a data item in its shortest form.
func appendCBORHead(to []byte, major byte, argument uint64) []byte {
	major <<= 5
	switch {
	case argument < cborInline:
		return append(to, major|byte(argument))
	case argument <= math.MaxUint8:
		return append(to, major|cborInline, byte(argument))
	case argument <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(to, major|(cborInline+1)), uint16(argument))
	case argument <= math.MaxUint32:
		return binary.BigEndian.AppendUint32(append(to, major|(cborInline+2)), uint32(argument))
	}
	return binary.BigEndian.AppendUint64(append(to, major|(cborInline+3)), argument)
}

// appendCBORString appends a string as a byte string, as upstream encodes strings.
func appendCBORString(to []byte, text string) []byte {
	return append(appendCBORHead(to, cborBytes, uint64(len(text))), text...)
}
