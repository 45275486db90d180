// Package encoding converts stored objects to the bytes of responses.
//
// # Path of a request
//
// handlers negotiate a Format with the client. A Format is a value: the resource in one version, the media type and the
// part of the object that is shown. The watch cache calls Format.Encode for an object that it does not have in that
// Format, and keeps the result of Format.Trim. Every GET, LIST and WATCH in the same Format then shares these bytes,
// until the object changes or the budget evicts them. handlers only write: an Envelope, a list or a watch frame around
// shared items. Tables are encoded for each request, because their cells depend on the current time.
//
// # Terms
//
//   - An item is the encoding of one object without the parts that differ between GET, LIST and WATCH. Kinds with a Go
//     type have JSON and CBOR items without apiVersion and kind, and protobuf items without the runtime.Unknown
//     envelope. Items of custom resources are complete JSON or CBOR.
//   - An Envelope completes an item to the body of a response or to a watch frame.
//   - A trimmed item is nil: the stored protobuf message differs from the item only in the resourceVersion, so that
//     Format.Assemble can build the item from the stored bytes. Without trimming, objects that Kubernetes' own
//     components read in the stored version would be in memory twice.
//
// # Invariants
//
//   - Formats are compared with ==. Two Formats are equal only if they encode the same stored bytes to the same bytes.
//     A changed CustomResourceDefinition has new Definitions and Versions, and therefore new Formats: no encoding for
//     the former schema is found again.
//   - Encode depends only on the Format, the stored bytes and the revision, never on a request. The result of a
//     conversion webhook may depend on more; the watch cache converts each object once, so that all clients see the
//     same result.
//   - Assemble(Trim(item)) equals the item byte for byte. Trim compares the bytes and does not rely on the form of the
//     stored message.
//   - Items and frames are shared between requests: no caller may change them.
//
// # Rejected
//
//   - Formats as pointers that are created on first use and stored in the resource.Version. Comparing one pointer is
//     cheaper, but the pointers need an owner: the lowest layer would hold values of the highest in a field of type
//     any.
//   - A function from handlers as the argument of the watch cache's lookup. The cache would depend on code above it,
//     and two callers with different functions under one key would share wrong bytes.
//   - Complete bodies instead of items. GET, LIST and WATCH of one object would need three encodings.
//   - Keeping the decoded object. It takes five to ten times the memory of its encoding, and each response would have
//     to encode it again.
package encoding
