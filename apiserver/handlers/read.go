package handlers

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"quorate.dev/apiserver/registry"
	"quorate.dev/apiserver/request"
	"quorate.dev/apiserver/watchcache"
)

// get answers with one object, as the client's resourceVersion allows.
func (c *call) get(ctx context.Context) error {
	if err := c.checkExport(); err != nil {
		return err
	}
	options := &metav1.GetOptions{}
	if err := decodeQuery(c.record.Query(), options); err != nil {
		return err
	}
	entry, err := c.Registry.Get(ctx, c.target, options.ResourceVersion)
	if err != nil {
		return err
	}
	if err := c.checkList(false); err != nil {
		return err
	}
	if c.target.Endpoint.View != nil || c.output.as == table {
		return c.getDecoded(entry)
	}
	e := c.encoder()
	item, err := e.item(entry)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	return c.send(http.StatusOK, e.body(item))
}

// checkExport refuses what kube-apiserver did once.
func (c *call) checkExport() error {
	wanted := c.record.Query()["export"]
	if len(wanted) == 0 {
		return nil
	}
	var export bool
	if err := runtime.Convert_Slice_string_To_bool(&wanted, &export, nil); err != nil {
		return apierrors.NewBadRequest(fmt.Sprintf("the export parameter cannot be parsed: %v", err))
	}
	if export {
		return apierrors.NewBadRequest("the export parameter, deprecated since v1.14, is no longer supported")
	}
	return nil
}

// checkList refuses a client that wants the metadata of a list and asks for an object, or the other way round.
func (c *call) checkList(list bool) error {
	if c.output.as != metadataOnly || c.output.list == list {
		return nil
	}
	if !list && c.untyped() {
		return errors.New("content is not a list")
	}
	err := request.Generic(http.StatusNotAcceptable)
	err.ErrStatus.Details = nil
	err.ErrStatus.Message = fmt.Sprintf("you requested PartialObjectMetadataList, but the requested object is not a list (%T)", c.codec().New())
	if list {
		err.ErrStatus.Message = fmt.Sprintf("you requested PartialObjectMetadata, but the requested object is a list (%TList)", c.codec().New())
	}
	return err
}

// getDecoded answers with what has to be made from the object itself: a view, or a table row.
func (c *call) getDecoded(entry *watchcache.Entry) error {
	internal, err := c.Registry.Decode(c.target, entry)
	if err != nil {
		return err
	}
	return c.sendView(http.StatusOK, internal)
}

// list answers with the selected objects.
func (c *call) list(ctx context.Context) error {
	options, selection, err := c.listOptions()
	if err != nil {
		return err
	}
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
	if err := c.checkList(true); err != nil {
		return err
	}
	return c.sendPage(page)
}

func (c *call) sendPage(page *registry.List) error {
	listMeta := page.Meta()
	if c.output.as == table {
		return c.sendTable(page.Entries, listMeta)
	}
	e := c.encoder()
	if err := c.takeRoom(e.room(page.Entries)); err != nil {
		return err
	}
	body, err := e.list(page.Entries, listMeta)
	if err != nil {
		return encodingError(err)
	}
	if c.room != nil {
		c.leaveRoom(e.room(page.Entries)) // what is shared now is the cache's, however long the client takes to read it
	}
	return c.sendList(body)
}

// encodingError is the answer to a request of which an object cannot be encoded, or that has ended meanwhile.
func encodingError(err error) error {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || errors.Is(err, errNoList) {
		return err
	}
	return apierrors.NewInternalError(err)
}
