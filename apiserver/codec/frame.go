package codec

import (
	"encoding/binary"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// WatchFrame returns a frame of a watch stream in JSON, protobuf or CBOR. complete has the same meaning as in
// AppendObject.
func WatchFrame(media Media, event string, kind schema.GroupVersionKind, complete bool, item []byte) []byte {
	const overhead = 128 // usual size of the parts around an item, except for its kind
	frame := make([]byte, 0, len(item)+HeadSize(kind)+overhead)
	return AppendWatchFrame(frame, media, event, kind, complete, Whole(item))
}

// AppendWatchFrame appends the frame that WatchFrame returns. In JSON and protobuf, it allocates nothing if the
// capacity of the buffer suffices.
func AppendWatchFrame(
	to []byte, media Media, event string, kind schema.GroupVersionKind, complete bool, item Encoding,
) []byte {
	switch media {
	case Protobuf:
		return appendProtobufFrame(to, event, kind, item)
	case CBOR:
		return appendCBORFrame(to, event, kind, complete, item.Bytes())
	}
	to = strconv.AppendQuote(append(to, `{"type":`...), event)
	to = append(to, `,"object":`...)
	return append(AppendObject(to, kind, complete, item.Bytes()), "}\n"...)
}

// appendProtobufFrame appends a metav1.WatchEvent after its length in four bytes, big endian.
func appendProtobufFrame(to []byte, event string, kind schema.GroupVersionKind, item Encoding) []byte {
	const eventType, eventObject, rawExtension, lengthSize = 1, 2, 1, 4
	begin, size := len(to), item.Size()
	envelope := envelopeSize(kind, size)
	to = append(to, make([]byte, lengthSize)...)
	to = protowire.AppendTag(to, eventType, protowire.BytesType)
	to = protowire.AppendString(to, event)
	to = protowire.AppendTag(to, eventObject, protowire.BytesType)
	to = protowire.AppendVarint(to, uint64(protowire.SizeTag(rawExtension)+protowire.SizeBytes(envelope)))
	to = protowire.AppendTag(to, rawExtension, protowire.BytesType)
	to = protowire.AppendVarint(to, uint64(envelope))
	to = appendEnvelopeHead(to, kind, size)
	to = appendEnvelopeTail(item.AppendTo(to))
	binary.BigEndian.PutUint32(to[begin:], uint32(len(to)-begin-lengthSize))
	return to
}

// appendCBORFrame appends a metav1.WatchEvent. Like kube-apiserver, it marks the event and the object in it as
// self-described CBOR.
func appendCBORFrame(to []byte, event string, kind schema.GroupVersionKind, complete bool, item []byte) []byte {
	const fields = 2
	to = appendCBORHead(append(to, cborMagic...), cborMap, fields)
	for _, text := range []string{"type", event, "object"} {
		to = appendCBORString(to, text)
	}
	return appendCBORObject(append(to, cborMagic...), kind, complete, item)
}
