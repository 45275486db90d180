package handlers

import (
	"context"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"quorate.dev/apiserver/encoding"
	"quorate.dev/apiserver/watchcache"
)

// get serves GET of one object.
func (c *call) get(ctx context.Context) error {
	if err := c.checkExport(); err != nil {
		return err
	}
	options := &metav1.GetOptions{}
	if err := decodeQuery(c.record.Query(), options); err != nil {
		return err
	}
	c.span.Event(eventReading)
	entry, err := c.Registry.Get(ctx, c.target, options.ResourceVersion)
	if err != nil {
		return err
	}
	if err := c.checkList(false); err != nil {
		return err
	}
	return c.Registry.GetError(ctx, c.target, entry, c.sendEntry(ctx, entry))
}

func (c *call) sendEntry(ctx context.Context, entry *watchcache.Entry) error {
	if c.target.Endpoint.View != nil || c.output.as == table {
		return c.getDecoded(ctx, entry)
	}
	f := c.format()
	// The memory is acquired before the body is copied, so that requests that wait hold no memory.
	if err := c.acquireMemory(f.EstimateSize(entry.Stored()) * (1 + c.output.reformatFactor())); err != nil {
		return err
	}
	item, err := entry.Encoded(ctx, f)
	if err != nil {
		return encodingError(err)
	}
	c.auditItem(f, func(f encoding.Format) ([]byte, error) {
		item, err := entry.Encoded(ctx, f)
		if err != nil {
			return nil, err
		}
		return item.Bytes(), nil
	})
	return c.send(http.StatusOK, f.Envelope().Body(item.Bytes()))
}

// checkExport rejects the removed parameter export as kube-apiserver does.
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

// getDecoded responds with the endpoint's View of the object, or with a table. Both require the decoded object.
func (c *call) getDecoded(ctx context.Context, entry *watchcache.Entry) error {
	internal, err := c.Registry.Decode(ctx, c.target, entry)
	if err != nil {
		return err
	}
	return c.sendView(http.StatusOK, internal)
}
