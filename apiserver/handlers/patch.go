package handlers

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"

	"quorate.dev/apiserver/audit"
	"quorate.dev/apiserver/codec"
	"quorate.dev/apiserver/registry/change"
	"quorate.dev/apiserver/request"
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
	logged, err := c.auditedPatch(body, patchType)
	if err != nil {
		return err
	}
	audit.LogPatch(c.record, logged)
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

// auditedPatch returns a patch as JSON for the audit log. A patch that is no JSON, or no YAML or CBOR for an apply, is
// refused before it is logged. It mirrors validateAndTranscodePatch of kube-apiserver.
func (c *call) auditedPatch(patch []byte, patchType types.PatchType) ([]byte, error) {
	if patchType == types.ApplyCBORPatchType {
		return c.auditedCBOR(patch)
	}
	if patchType == types.ApplyYAMLPatchType {
		if checker, ok := c.codec().(resource.BodyChecker); ok { // conversion costs more than the size of the patch
			if err := checker.CheckBody(patch, runtime.ContentTypeYAML); err != nil {
				return nil, apierrors.NewBadRequest(fmt.Sprintf("error encoding patch: %v", err))
			}
		}
		converted, err := yaml.ToJSON(patch)
		if err != nil {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("error encoding patch: %v", err))
		}
		return converted, nil
	}
	if !json.Valid(patch) {
		return nil, apierrors.NewBadRequest("invalid JSON patch")
	}
	return patch, nil
}

// auditedCBOR returns an apply configuration in CBOR as JSON.
func (c *call) auditedCBOR(patch []byte) ([]byte, error) {
	if checker, ok := c.codec().(resource.BodyChecker); ok {
		if err := checker.CheckBody(patch, runtime.ContentTypeCBOR); err != nil {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("error decoding patch: %v", err))
		}
	}
	converted, err := codec.CBORToJSON(patch)
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("error decoding patch: %v", err))
	}
	return converted, nil
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
	accepted = append(accepted, string(types.ApplyYAMLPatchType))
	if request.ServesCBOR() {
		accepted = append(accepted, string(types.ApplyCBORPatchType))
	}
	return accepted
}
