package audit

import (
	"bytes"
	"encoding/json"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	auditapi "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"sigs.k8s.io/yaml"

	"quorate.dev/apiserver/request"
)

// Request is the object in the body of a request.
type Request struct {
	Object runtime.Object
	// Version is the version that the body declares.
	Version     schema.GroupVersion
	Resource    schema.GroupVersionResource
	Subresource string
	// Encode returns Object, or a copy of it without managed fields, as JSON.
	Encode func(runtime.Object) ([]byte, error)
}

// LogRequest records a request object after decoding and defaulting. At the level Metadata, it records only the name,
// UID and resourceVersion of the object.
func LogRequest(record *request.Record, r Request) {
	if !record.Audits(auditapi.LevelMetadata) {
		return
	}
	encoder := requestEncoder{record: record, encode: r.Encode, wanted: record.Audits(auditapi.LevelRequest)}
	audit.LogRequestObject(record, r.Object, r.Version, r.Resource, r.Subresource, encoder)
}

// requestEncoder is the serializer that upstream's audit.LogRequestObject uses to encode the object.
type requestEncoder struct {
	runtime.Encoder
	record *request.Record
	encode func(runtime.Object) ([]byte, error)
	// wanted is set if the level includes the object. Upstream encodes the object at every level.
	wanted bool
}

// SupportedMediaTypes implements runtime.NegotiatedSerializer.
func (e requestEncoder) SupportedMediaTypes() []runtime.SerializerInfo {
	return []runtime.SerializerInfo{{MediaType: runtime.ContentTypeJSON, Serializer: serializer{e}}}
}

// EncoderForVersion implements runtime.NegotiatedSerializer.
func (e requestEncoder) EncoderForVersion(runtime.Encoder, runtime.GroupVersioner) runtime.Encoder {
	return e
}

// DecoderToVersion implements runtime.NegotiatedSerializer.
func (e requestEncoder) DecoderToVersion(d runtime.Decoder, _ runtime.GroupVersioner) runtime.Decoder {
	return d
}

// Encode implements runtime.Encoder. It returns no error, because upstream would log the error together with the
// object, which may be a Secret.
func (e requestEncoder) Encode(object runtime.Object, w io.Writer) error {
	if !e.wanted {
		return nil
	}
	body, err := e.encode(object)
	if err != nil {
		e.record.Logger.Error(err, "Encoding the request object for the audit log failed", "auditID", e.record.AuditID)
		return nil
	}
	_, err = w.Write(body)
	return err
}

// serializer makes requestEncoder a runtime.Serializer. Upstream only passes it to EncoderForVersion.
type serializer struct{ requestEncoder }

// Decode implements runtime.Decoder.
func (serializer) Decode(
	[]byte, *schema.GroupVersionKind, runtime.Object,
) (runtime.Object, *schema.GroupVersionKind, error) {
	return nil, nil, runtime.NewNotRegisteredErrForKind("", schema.GroupVersionKind{})
}

// LogPatch records a patch. kube-apiserver drops the event of a patch that is not JSON, such as an apply configuration
// in YAML. LogPatch converts YAML to JSON, and records a patch that is neither as a string.
func LogPatch(record *request.Record, patch []byte) {
	if !record.Audits(auditapi.LevelRequest) {
		return
	}
	if !json.Valid(patch) {
		converted, err := yaml.YAMLToJSON(patch)
		if err != nil {
			converted, _ = json.Marshal(string(patch)) // marshalling a string cannot fail
		}
		patch = converted
	}
	record.AuditContext().LogRequestPatch(patch)
}

// LogsResponse reports whether the policy records the response object.
func LogsResponse(record *request.Record) bool { return record.Audits(auditapi.LevelRequestResponse) }

// LogResponse records a response object, encoded as JSON, if the policy records it. The event refers to the bytes until
// the request ends. status is the object if it is a Status, otherwise nil.
func LogResponse(record *request.Record, status *metav1.Status, encode func() ([]byte, error)) {
	if !record.Audits(auditapi.LevelMetadata) {
		return
	}
	if !LogsResponse(record) {
		record.AuditContext().LogResponseObject(status, nil)
		return
	}
	body, err := encode()
	if err != nil {
		record.Logger.Error(err, "Encoding the response object for the audit log failed", "auditID", record.AuditID)
		record.AuditContext().LogResponseObject(status, nil)
		return
	}
	if record.Audit.OmitManagedFields {
		body = omitManagedFields(body)
	}
	record.AuditContext().LogResponseObject(status, &runtime.Unknown{Raw: body, ContentType: runtime.ContentTypeJSON})
}

// Limit compares the size of a list's items with the size above which the list's event would be truncated.
type Limit struct {
	// left is the number of bytes left of max; max is 0 if there is no limit.
	left, max int64
	// omits is set if managed fields do not count, because they are omitted from the event.
	omits bool
}

// NewLimit returns the limit for the response object of a request.
func NewLimit(record *request.Record) *Limit {
	limit := record.Audit.MaxObject
	return &Limit{left: limit, max: limit, omits: record.Audit.OmitManagedFields}
}

// Item is the shared encoding of an object in a list.
type Item interface {
	Size() int
	Bytes() []byte
}

// Exceeded counts an item and reports whether the items exceed the limit.
func (l *Limit) Exceeded(item Item) bool {
	if l.max == 0 {
		return false
	}
	size := item.Size()
	if l.omits {
		size = len(omitManagedFields(item.Bytes()))
	}
	l.left -= int64(size)
	return l.left < 0
}

// LogTooLarge records a response object that exceeds the limit, without its content: truncation drops the objects of
// the event and adds the annotation that they were truncated.
func LogTooLarge(record *request.Record) {
	filler := append(bytes.Repeat([]byte{'x'}, int(record.Audit.MaxObject)+1), '"')
	filler[0] = '"'
	record.AuditContext().LogResponseObject(nil, &runtime.Unknown{Raw: filler, ContentType: runtime.ContentTypeJSON})
}
