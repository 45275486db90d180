package registry

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"quorate.dev/apiserver/audit"
	"quorate.dev/apiserver/codec"
	"quorate.dev/apiserver/encoding"
	"quorate.dev/apiserver/resource"
)

// AuditWith sets the auditor of the server's own writes; nil: they are not audited. It must be called before the first
// write.
func (r *Registry) AuditWith(a *audit.Auditor) { r.auditor = a }

// beginAudit starts the event of a write by the server itself.
func (r *Registry) beginAudit(ctx context.Context, t Target, verb string) *audit.ServerEvent {
	return r.auditor.BeginServerWrite(ctx, audit.ServerWrite{
		Verb:        verb,
		Resource:    schema.GroupVersionResource{Group: t.Group, Version: t.Version.Name, Resource: t.Plural},
		Subresource: t.Endpoint.Subresource, Namespace: t.Namespace, Name: t.Name, Encode: t.encodeJSON,
	}, r.clock.Now(), r.logger)
}

// encodeJSON returns the JSON of an object in the internal version.
func (t Target) encodeJSON(internal runtime.Object) ([]byte, error) {
	external, err := t.Version.Codec.External(internal)
	if err != nil {
		return nil, err
	}
	item, err := codec.Item(codec.JSON, external)
	if err != nil {
		return nil, err
	}
	envelope := encoding.Envelope{Media: codec.JSON, Kind: t.Version.Kind, Complete: t.Source == resource.Custom}
	return envelope.Body(item), nil
}
