package codec

import (
	"bytes"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"
)

// objectMetaRevision is the field number of metav1.ObjectMeta.resourceVersion.
const objectMetaRevision = 6

// Encoding is an item as part of a response: its bytes or, if the item differs from the stored bytes only in the
// resourceVersion, the stored bytes. Objects that clients read as protobuf in the stored version, as Kubernetes' own
// components do, are then not in memory twice.
type Encoding struct {
	message []byte // complete item, or the stored message
	// at is the offset in message of the tag of the empty resourceVersion; 0: message is complete.
	at       int
	revision int64 // replaces the empty resourceVersion
}

// Whole returns the encoding of complete bytes.
func Whole(item []byte) Encoding { return Encoding{message: item} }

// AsStored returns the encoding of stored bytes at a revision, or of their metadata only. ok is false if the form of
// the stored message does not permit it. The result may differ from the result of Item, because stored bytes lack
// defaults that were added since; the caller must compare them by IsItem.
func AsStored(stored []byte, revision int64, metadataOnly bool) (encoding Encoding, ok bool) {
	if !IsProtobuf(stored) {
		return Encoding{}, false
	}
	message, err := messageField(stored[len(protobufMagic):], unknownRaw)
	if err != nil {
		return Encoding{}, false
	}
	field, metadata, rest, err := nextField(message)
	if err != nil || field != objectMetadata || metadata == nil {
		return Encoding{}, false
	}
	if metadataOnly {
		message = message[:len(message)-len(rest)]
	}
	for left := metadata; len(left) > 0; {
		field, value, after, err := nextField(left)
		if err != nil || field > objectMetaRevision {
			return Encoding{}, false
		}
		if field == objectMetaRevision {
			at := len(message) - len(left)
			if !metadataOnly {
				at -= len(rest)
			}
			return Encoding{message: message, at: at, revision: revision}, value != nil && len(value) == 0
		}
		left = after
	}
	return Encoding{}, false
}

// IsItem reports whether the encoding equals an item.
func (e Encoding) IsItem(item []byte) bool {
	return e.Size() == len(item) && bytes.Equal(e.AppendTo(nil), item)
}

// Bytes returns the item. The caller must not change it.
func (e Encoding) Bytes() []byte {
	if e.at == 0 {
		return e.message
	}
	return e.AppendTo(make([]byte, 0, e.Size()))
}

// Size returns the length of the item in bytes.
func (e Encoding) Size() int {
	if e.at == 0 {
		return len(e.message)
	}
	metadata, _ := protowire.ConsumeVarint(e.message[1:])
	digits := digits(e.revision)
	return len(e.message) + digits + protowire.SizeVarint(metadata+uint64(digits)) - protowire.SizeVarint(metadata)
}

// AppendTo appends the item: the stored message up to the resourceVersion with the new length of its metadata, the
// resourceVersion, and the rest.
func (e Encoding) AppendTo(to []byte) []byte {
	if e.at == 0 {
		return append(to, e.message...)
	}
	metadata, n := protowire.ConsumeVarint(e.message[1:])
	digits := digits(e.revision)
	to = append(to, e.message[0])
	to = protowire.AppendVarint(to, metadata+uint64(digits))
	to = append(to, e.message[1+n:e.at+1]...)
	to = append(to, byte(digits))
	to = strconv.AppendInt(to, e.revision, 10)
	return append(to, e.message[e.at+2:]...)
}

// digits returns the number of decimal digits of a positive number.
func digits(number int64) int {
	n := 1
	for number >= 10 {
		number /= 10
		n++
	}
	return n
}
