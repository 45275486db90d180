package codec

import (
	"bytes"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"
)

// objectMetaRevision is the field number of metav1.ObjectMeta.resourceVersion.
const objectMetaRevision = 6

// Encoding is an item as responses are put together from it: its bytes or, where they are what is stored but for the
// revision, the stored bytes. So what is stored in the version that clients ask for in protobuf, as Kubernetes' own
// components do, is not in memory twice.
type Encoding struct {
	message  []byte // complete, or as stored
	at       int    // of a stored message: where the tag of its revision is, which is empty; 0: message is complete
	revision int64  // to be put there
}

// Whole is the encoding of which all bytes are there.
func Whole(item []byte) Encoding { return Encoding{message: item} }

// AsStored is the encoding of stored bytes at a revision, or of their metadata only; ok tells whether they have the form
// that makes it possible. Whether it is what Item makes of the object the caller has to see: see IsItem.
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

// IsItem reports whether the encoding is these bytes.
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

// Size returns the item's length in bytes.
func (e Encoding) Size() int {
	if e.at == 0 {
		return len(e.message)
	}
	metadata, _ := protowire.ConsumeVarint(e.message[1:])
	digits := digits(e.revision)
	return len(e.message) + digits + protowire.SizeVarint(metadata+uint64(digits)) - protowire.SizeVarint(metadata)
}

// AppendTo appends the item.
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

// digits is how many digits a number greater than 0 has.
func digits(number int64) int {
	n := 1
	for number >= 10 {
		number /= 10
		n++
	}
	return n
}
