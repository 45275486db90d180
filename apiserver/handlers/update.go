package handlers

import (
	"context"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"

	"quorate.dev/apiserver/registry"
	"quorate.dev/apiserver/registry/change"
)

// update serves PUT. kube-apiserver checks the media type of an update after the options, unlike the media type of a
// create.
func (c *call) update(ctx context.Context) error {
	body, err := c.record.Body(c.r)
	if err != nil {
		return err
	}
	c.span.Event(eventBodyRead)
	options, err := c.updateOptions()
	if err != nil {
		return err
	}
	mediaType, err := contentType(c.r, offered(c.target))
	if err != nil {
		return err
	}
	object, err := c.decodeBody(body, mediaType, fieldValidation(options.FieldValidation))
	if err != nil {
		return err
	}
	if err := c.checkNamespace(object); err != nil {
		return err
	}
	accessor, err := meta.Accessor(object)
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	if err := change.CheckName(accessor, c.target); err != nil {
		return err
	}
	c.span.Event(eventConverted)
	c.span.Event(eventStoring)
	write := c.writeOptions(options.DryRun, options.FieldManager, options)
	result, err := c.Registry.Update(ctx, c.target, change.Replacement{Object: object, Manager: write.Manager}, write)
	if err != nil {
		return err
	}
	c.span.Event(eventStored)
	return c.sendResult(updateCode(result), result)
}

func updateCode(result *registry.Result) int {
	if result.Outcome == registry.Created {
		return http.StatusCreated
	}
	return http.StatusOK
}
