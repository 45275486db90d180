package client

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"quorate.dev/apiserver/audit"
	"quorate.dev/apiserver/codec"
	"quorate.dev/apiserver/encoding"
	"quorate.dev/apiserver/resource"
)

// beginAudit starts the event of a write by the server itself.
func (c *Client) beginAudit(ctx context.Context, t resource.Target, verb string) *audit.ServerEvent {
	return c.options.Auditor.BeginServerWrite(ctx, audit.ServerWrite{
		Verb:        verb,
		Resource:    schema.GroupVersionResource{Group: t.Group, Version: t.Version.Name, Resource: t.Plural},
		Subresource: t.Endpoint.Subresource, Namespace: t.Namespace, Name: t.Name,
		Encode: func(internal runtime.Object) ([]byte, error) { return encodeJSON(t, internal) },
	}, c.options.Clock.Now(), c.options.Logger)
}

// encodeJSON returns the JSON of an object in the internal version.
func encodeJSON(t resource.Target, internal runtime.Object) ([]byte, error) {
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
