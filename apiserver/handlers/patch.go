package handlers

import (
	"context"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"

	"quorate.dev/apiserver/audit"
	"quorate.dev/apiserver/registry/change"
	"quorate.dev/apiserver/resource"
)

// patch serves PATCH.
func (c *call) patch(ctx context.Context) error {
	patchType, err := c.patchType()
	if err != nil {
		return err
	}
	body, err := c.record.Body(c.r)
	if err != nil {
		return err
	}
	c.span.Event(eventBodyRead)
	options, err := c.patchOptions(patchType)
	if err != nil {
		return err
	}
	audit.LogPatch(c.record, body)
	write := c.writeOptions(options.DryRun, options.FieldManager, &metav1.UpdateOptions{
		DryRun: options.DryRun, FieldManager: options.FieldManager, FieldValidation: options.FieldValidation,
	})
	result, err := c.Registry.Patch(ctx, c.target, change.Patch{
		Type:       patchType,
		Data:       body,
		Manager:    write.Manager,
		Force:      options.Force != nil && *options.Force,
		Validation: fieldValidation(options.FieldValidation),
	}, write)
	if err != nil {
		return err
	}
	c.span.Event(eventPatched)
	return c.sendResult(updateCode(result), result)
}

// patchType returns the type of the patch from the Content-Type header. Unlike for other verbs, there is no default.
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

// patchTypes returns the media types of patches that the target accepts. Custom resources have no strategic merge
// patch, which needs a Go type.
func (c *call) patchTypes() []string {
	accepted := []string{string(types.JSONPatchType), string(types.MergePatchType)}
	if c.target.Source != resource.Custom {
		accepted = append(accepted, string(types.StrategicMergePatchType))
	}
	return append(accepted, string(types.ApplyYAMLPatchType))
}
