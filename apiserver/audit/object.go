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
	// Version is the one that the body declares.
	Version     schema.GroupVersion
	Resource    schema.GroupVersionResource
	Subresource string
	// Encode returns the JSON of Object, or of a copy without managed fields.
	Encode func(runtime.Object) ([]byte, error)
}

// LogRequest records a request object, as it is after decoding and defaulting. At level Metadata only its name, UID and
// resourceVersion are recorded.
func LogRequest(record *request.Record, r Request) {
	if !record.Audits(auditapi.LevelMetadata) {
		return
	}
	encoder := requestEncoder{record: record, encode: r.Encode, wanted: record.Audits(auditapi.LevelRequest)}
	audit.LogRequestObject(record, r.Object, r.Version, r.Resource, r.Subresource, encoder)
}

// requestEncoder is what upstream's audit.LogRequestObject encodes with.
type requestEncoder struct {
	runtime.Encoder
	record *request.Record
	encode func(runtime.Object) ([]byte, error)
	wanted bool // upstream encodes objects even if the level does not ask for them
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

// Encode implements runtime.Encoder. It returns no error, because upstream would log the object with it, which may be a
// Secret.
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

// serializer makes requestEncoder a runtime.Serializer, which upstream hands to EncoderForVersion only.
type serializer struct{ requestEncoder }

// Decode implements runtime.Decoder.
func (serializer) Decode([]byte, *schema.GroupVersionKind, runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	return nil, nil, runtime.NewNotRegisteredErrForKind("", schema.GroupVersionKind{})
}

// LogPatch records a patch. kube-apiserver drops the event of a patch that is not JSON, such as an apply configuration in
// YAML; here it is recorded as JSON or, if it is neither, as a string.
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

// LogsResponse reports whether the response object is recorded.
func LogsResponse(record *request.Record) bool { return record.Audits(auditapi.LevelRequestResponse) }

// LogResponse records the JSON of a response object, if the level asks for it. The event refers to the bytes until the
// request ends. status is the object if it is a Status, otherwise nil.
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

// Limit counts the JSON of a list against the size above which its event would be truncated.
type Limit struct {
	left, max int64 // bytes; max 0: no limit
	omits     bool
}

// NewLimit returns the limit of a request's response object.
func NewLimit(record *request.Record) *Limit {
	limit := record.Audit.MaxObject
	return &Limit{left: limit, max: limit, omits: record.Audit.OmitManagedFields}
}

// Item is the shared encoding of an object in a list.
type Item interface {
	Size() int
	Bytes() []byte
}

// Exceeded adds an item and reports whether the limit is exceeded.
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
// the event, and adds an annotation that says so.
func LogTooLarge(record *request.Record) {
	filler := append(bytes.Repeat([]byte{'x'}, int(record.Audit.MaxObject)+1), '"')
	filler[0] = '"'
	record.AuditContext().LogResponseObject(nil, &runtime.Unknown{Raw: filler, ContentType: runtime.ContentTypeJSON})
}
