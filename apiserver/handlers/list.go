package handlers

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"quorate.dev/apiserver/registry"
	"quorate.dev/apiserver/request"
	"quorate.dev/apiserver/resource"
)

// list serves GET of a collection.
func (c *call) list(ctx context.Context) error {
	options, selection, err := c.listOptions()
	if err != nil {
		return err
	}
	c.span.Event(eventListing)
	page, err := c.Registry.List(ctx, c.target, registry.ListOptions{
		Selection:       selection,
		ResourceVersion: options.ResourceVersion,
		Match:           options.ResourceVersionMatch,
		Limit:           options.Limit,
		Continue:        options.Continue,
	})
	if err != nil {
		return err
	}
	defer page.Close()
	c.span.Event(eventListed)
	if err := c.checkList(true); err != nil {
		return err
	}
	return c.Registry.ListError(ctx, c.target, page, c.sendPage(page))
}

// sendPage responds with a page of a list.
func (c *call) sendPage(page *registry.List) error {
	listMeta := page.Meta()
	if c.output.as == table {
		return c.sendTable(page, listMeta)
	}
	f := c.format()
	if err := c.acquireMemory(c.listMemory(f, page.Entries)); err != nil {
		return err
	}
	items, err := page.Encoded(c.r.Context(), f)
	if err != nil {
		return encodingError(err)
	}
	body, err := f.List(items, listMeta)
	if err != nil {
		return encodingError(err)
	}
	if err := c.auditList(f, page.Entries, listMeta); err != nil {
		return encodingError(err)
	}
	if c.memory != nil {
		// This precedes sending the body: while a slow client reads, the request must not count the encodings that the
		// watch cache has stored by now.
		c.shrinkMemory(c.listMemory(f, page.Entries))
	}
	c.span.Event(eventWriting)
	defer c.span.Event(eventWritten)
	defer c.span.Start(spanSerialize).End()
	return c.sendList(body)
}

// checkList rejects a request whose Accept header names PartialObjectMetadataList although the response is one object,
// or PartialObjectMetadata although the response is a list.
func (c *call) checkList(list bool) error {
	if c.output.as != metadataOnly || c.output.list == list {
		return nil
	}
	if !list && c.target.Source == resource.Custom {
		return errors.New("content is not a list")
	}
	err := request.Generic(http.StatusNotAcceptable)
	err.ErrStatus.Details = nil
	message := "you requested PartialObjectMetadataList, but the requested object is not a list (%T)"
	if list {
		message = "you requested PartialObjectMetadata, but the requested object is a list (%TList)"
	}
	err.ErrStatus.Message = fmt.Sprintf(message, c.codec().New())
	return err
}

// encodingError returns the error for the client of a request whose objects cannot be encoded. Errors of the context,
// of conversion and errNoList remain as they are; all others become internal errors.
func encodingError(err error) error {
	var conversion *resource.ConversionError
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || errors.Is(err, errNoList) ||
		errors.As(err, &conversion) {
		return err
	}
	return apierrors.NewInternalError(err)
}
