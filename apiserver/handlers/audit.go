package handlers

import (
	"bytes"

	internalscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"quorate.dev/apiserver/audit"
	"quorate.dev/apiserver/codec"
	"quorate.dev/apiserver/encoding"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/watchcache"
)

const (
	// maxAuditMemory bounds the bytes of response bodies that audit events refer to until they are delivered.
	maxAuditMemory = 128 << 20
	// auditFactor is the approximate bytes of memory for each byte of a response while its audit event is encoded.
	auditFactor = 3
)

// auditRequest records the decoded object of a create or update request in the audit event.
func (c *call) auditRequest(object runtime.Object, declared schema.GroupVersion) {
	envelope := encoding.Envelope{
		Media: codec.JSON, Kind: declared.WithKind(c.target.Endpoint.Kind.Kind),
		Complete: c.target.Source == resource.Custom && c.target.Endpoint.Body == nil,
	}
	c.auditBody(object, declared, func(object runtime.Object) ([]byte, error) {
		external, err := c.codec().External(object)
		if err != nil {
			return nil, err
		}
		item, err := codec.Item(codec.JSON, external)
		if err != nil {
			return nil, err
		}
		return envelope.Body(item), nil
	})
}

// auditDeleteOptions records the DeleteOptions in the body of a deletion in the audit event.
func (c *call) auditDeleteOptions(options *metav1.DeleteOptions, declared schema.GroupVersion) {
	c.auditBody(options, declared, func(object runtime.Object) ([]byte, error) {
		info, _ := runtime.SerializerInfoForMediaType(internalscheme.Codecs.SupportedMediaTypes(), runtime.ContentTypeJSON)
		return runtime.Encode(internalscheme.Codecs.EncoderForVersion(info.Serializer, declared), object)
	})
}

func (c *call) auditBody(
	object runtime.Object, declared schema.GroupVersion, encode func(runtime.Object) ([]byte, error),
) {
	audit.LogRequest(c.record, audit.Request{
		Object: object, Version: declared, Subresource: c.target.Endpoint.Subresource, Encode: encode,
		Resource: schema.GroupVersionResource{
			Group: c.target.Group, Version: c.target.Version.Name, Resource: c.target.Plural,
		},
	})
}

// auditItem records a response of one object in the audit event, as JSON. encode returns the object in the given
// format.
func (c *call) auditItem(f encoding.Format, encode func(encoding.Format) ([]byte, error)) {
	f.Media = codec.JSON
	audit.LogResponse(c.record, nil, func() ([]byte, error) {
		item, err := encode(f)
		if err != nil {
			return nil, err
		}
		return f.Envelope().Body(item), nil
	})
}

// auditJSON records a JSON response body in the audit event.
func (c *call) auditJSON(body []byte) {
	audit.LogResponse(c.record, nil, func() ([]byte, error) { return body, nil })
}

// auditList records a list in the audit event. The items are the encodings that all responses share; the event's list
// is a copy, whose size auditMemory bounds. A list that every backend would drop because of its size is not assembled.
func (c *call) auditList(f encoding.Format, entries []*watchcache.Entry, listMeta metav1.ListMeta) error {
	if !audit.LogsResponse(c.record) {
		return nil
	}
	f.Media = codec.JSON
	if err := c.acquireAuditMemory(f, entries); err != nil {
		return err
	}
	limit := audit.NewLimit(c.record)
	items := make([]codec.Encoding, len(entries))
	for i, entry := range entries {
		if c.r.Context().Err() != nil {
			return c.r.Context().Err()
		}
		var err error
		if items[i], err = entry.Encoded(c.r.Context(), f); err != nil {
			return err
		}
		if limit.Exceeded(items[i]) {
			audit.LogTooLarge(c.record)
			return nil
		}
	}
	list, err := f.List(items, listMeta)
	if err != nil {
		return err
	}
	body := bytes.NewBuffer(make([]byte, 0, list.Size()))
	writeChunks(body, list)
	c.auditJSON(body.Bytes())
	return nil
}

// acquireAuditMemory waits until the audit event may refer to a list of the entries. The event releases the memory when
// it has been delivered.
func (c *call) acquireAuditMemory(f encoding.Format, entries []*watchcache.Entry) error {
	total, _ := estimate(f, entries)
	if limit := c.record.Audit.MaxObject; limit > 0 {
		total = min(total, limit)
	}
	held, err := c.auditMemory.Acquire(c.r.Context(), total*auditFactor)
	if err != nil {
		return err
	}
	c.record.HoldForAudit(held)
	return nil
}
