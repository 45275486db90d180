package handlers

import (
	"context"
	"net/http"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apiserver/pkg/registry/rest"
)

// create serves POST. If a request has several errors, the client gets the one that kube-apiserver finds first. The
// order is: media type, size, options, content.
func (c *call) create(ctx context.Context) error {
	mediaType, err := contentType(c.r, offered(c.target))
	if err != nil {
		return err
	}
	body, err := c.record.Body(c.r)
	if err != nil {
		return err
	}
	c.span.Event(eventBodyRead)
	options, err := c.createOptions()
	if err != nil {
		return err
	}
	object, err := c.decodeBody(body, mediaType, fieldValidation(options.FieldValidation))
	if err != nil {
		return err
	}
	if accessor, err := meta.Accessor(object); err == nil {
		if !c.target.Endpoint.KeepsMetadata {
			rest.WipeObjectMetaSystemFields(accessor)
		}
		if err := c.checkNamespace(object); err != nil {
			return err
		}
	}
	c.span.Event(eventConverted)
	c.span.Event(eventStoring)
	result, err := c.Registry.Create(ctx, c.target, object, c.writeOptions(options.DryRun, options.FieldManager, options))
	if err != nil {
		return err
	}
	c.span.Event(eventStored)
	return c.sendResult(http.StatusCreated, result)
}
