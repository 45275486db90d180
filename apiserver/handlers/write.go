package handlers

import (
	"context"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/registry/rest"

	"quorate.dev/apiserver/registry"
	"quorate.dev/apiserver/resource"
)

// create stores a new object, or does an action. Of several errors in a request the client gets kube-apiserver's first:
// the type of the body, its size, the options, its content.
func (c *call) create(ctx context.Context) error {
	mediaType, err := contentType(c.r, offered(c.target))
	if err != nil {
		return err
	}
	body, err := c.record.Body(c.r)
	if err != nil {
		return err
	}
	options, err := c.createOptions()
	if err != nil {
		return err
	}
	object, err := c.decodeBody(body, mediaType, fieldValidation(options.FieldValidation))
	if err != nil {
		return err
	}
	if accessor, err := meta.Accessor(object); err == nil {
		if c.target.Endpoint.Action == nil {
			rest.WipeObjectMetaSystemFields(accessor)
		}
		if err := c.checkNamespace(object); err != nil {
			return err
		}
	}
	result, err := c.Registry.Create(ctx, c.target, object, c.writeOptions(options.DryRun, options.FieldManager, options))
	if err != nil {
		return err
	}
	return c.answer(http.StatusCreated, result)
}

// update replaces an object. Here kube-apiserver looks at the type of the body after the options.
func (c *call) update(ctx context.Context) error {
	body, err := c.record.Body(c.r)
	if err != nil {
		return err
	}
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
	if err := registry.CheckName(accessor, c.target); err != nil {
		return err
	}
	write := c.writeOptions(options.DryRun, options.FieldManager, options)
	result, err := c.Registry.Update(ctx, c.target, registry.Replacement{Object: object, Manager: write.Manager}, write)
	if err != nil {
		return err
	}
	return c.answer(updateCode(result), result)
}

func updateCode(result *registry.Result) int {
	if result.Outcome == registry.Created {
		return http.StatusCreated
	}
	return http.StatusOK
}

// patch changes part of an object.
func (c *call) patch(ctx context.Context) error {
	patchType, err := c.patchType()
	if err != nil {
		return err
	}
	body, err := c.record.Body(c.r)
	if err != nil {
		return err
	}
	options, err := c.patchOptions(patchType)
	if err != nil {
		return err
	}
	write := c.writeOptions(options.DryRun, options.FieldManager, &metav1.UpdateOptions{
		DryRun: options.DryRun, FieldManager: options.FieldManager, FieldValidation: options.FieldValidation,
	})
	result, err := c.Registry.Patch(ctx, c.target, registry.Patch{
		Type:       patchType,
		Data:       body,
		Manager:    write.Manager,
		Force:      options.Force != nil && *options.Force,
		Validation: fieldValidation(options.FieldValidation),
	}, write)
	if err != nil {
		return err
	}
	return c.answer(updateCode(result), result)
}

// patchType is the kind of patch that the request's body is; there is none that goes without saying.
func (c *call) patchType() (types.PatchType, error) {
	accepted := c.patchTypes()
	header, _, _ := strings.Cut(c.r.Header.Get("Content-Type"), ";")
	switch mediaType := strings.TrimSpace(header); {
	case slices.Contains(accepted, mediaType):
		return types.PatchType(mediaType), nil
	case c.target.Source == resource.Custom:
		return "", negotiation.NewUnsupportedMediaTypeError(accepted)
	}
	return "", unsupported("415: Unsupported Media Type")
}

// patchTypes are the patches the target takes: strategic merge needs a Go type to direct it.
func (c *call) patchTypes() []string {
	if c.target.Source == resource.Custom {
		return []string{string(types.JSONPatchType), string(types.MergePatchType), string(types.ApplyYAMLPatchType)}
	}
	return []string{string(types.JSONPatchType), string(types.MergePatchType), string(types.StrategicMergePatchType), string(types.ApplyYAMLPatchType)}
}

// answer sends the outcome of a write, and hands the encoding made for it to the cache.
func (c *call) answer(code int, result *registry.Result) error {
	if result.Stored == nil {
		if status, ok := result.Object.(*metav1.Status); ok && status.Code == 0 {
			status.Code = int32(code)
		}
		return c.sendObject(code, result.Object)
	}
	if c.target.Endpoint.View != nil || c.output.as == table {
		internal, err := c.Registry.DecodeResult(c.target, result)
		if err != nil {
			return err
		}
		return c.sendView(code, internal)
	}
	c.output.undecorated = c.output.undecorated || result.Outcome.Undecorated()
	e := c.encoder()
	item, err := e.encode(result.Stored, result.Revision)
	if err != nil {
		return err
	}
	c.Registry.Offer(c.target, result, &e.formats[frameNone], e.kept(item, result.Stored, result.Revision))
	return c.send(code, e.body(item))
}

// remove deletes an object, or begins to.
func (c *call) remove(ctx context.Context) error {
	options, err := c.deleteOptions()
	if err != nil {
		return err
	}
	c.warnOfDeletion(ctx, options)
	result, err := c.Registry.Delete(ctx, c.target, options, registry.WriteOptions{DryRun: len(options.DryRun) > 0})
	if err != nil {
		return err
	}
	code := http.StatusOK
	//nolint:staticcheck // OrphanDependents is still sent by old clients
	if !result.Outcome.Deleted() && options.OrphanDependents != nil && !*options.OrphanDependents {
		code = http.StatusAccepted
	}
	if !result.Outcome.Deleted() || result.Outcome == registry.DeletedEmpty || c.target.ReturnsDeleted {
		return c.answer(code, result)
	}
	return c.deleted(code, result)
}

// warnOfDeletion passes on what the kind has to say about the options.
func (c *call) warnOfDeletion(ctx context.Context, options *metav1.DeleteOptions) {
	warner, ok := c.target.Endpoint.Delete.(resource.DeletionWarner)
	if !ok {
		return
	}
	for _, text := range warner.WarningsOnDelete(ctx, options) {
		c.record.Warnings.AddWarning("", text)
	}
}

// deleted answers with a Status that names what is gone.
func (c *call) deleted(code int, result *registry.Result) error {
	accessor, err := meta.Accessor(result.Object)
	if err != nil {
		return err
	}
	return c.sendStatus(code, &metav1.Status{
		Status: metav1.StatusSuccess,
		Details: &metav1.StatusDetails{
			Name:  accessor.GetName(),
			Group: c.target.Group,
			Kind:  c.target.Plural,
			UID:   accessor.GetUID(),
		},
	})
}

// removeCollection deletes the selected objects.
func (c *call) removeCollection(ctx context.Context) error {
	list, selection, err := c.listOptions()
	if err != nil {
		return err
	}
	options, err := c.deleteOptions()
	if err != nil {
		return err
	}
	c.warnOfDeletion(ctx, options)
	page, err := c.Registry.DeleteCollection(ctx, c.target, registry.DeleteCollectionOptions{
		List: registry.ListOptions{
			Selection:       selection,
			ResourceVersion: list.ResourceVersion,
			Match:           list.ResourceVersionMatch,
			Limit:           list.Limit,
			Continue:        list.Continue,
		},
		Delete:  options,
		Write:   registry.WriteOptions{DryRun: len(options.DryRun) > 0},
		Workers: c.DeleteWorkers,
	})
	if err != nil {
		return err
	}
	defer page.Close()
	// Too late to refuse the request, but there is nothing to show the answer as.
	if err := c.checkList(true); err != nil {
		return err
	}
	return c.sendPage(page)
}
