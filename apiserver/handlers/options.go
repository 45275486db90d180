package handlers

import (
	"fmt"
	"net/http"
	"net/url"
	"unicode"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	internalscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	internalvalidation "k8s.io/apimachinery/pkg/apis/meta/internalversion/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"quorate.dev/apiserver/registry"
	"quorate.dev/apiserver/request"
	"quorate.dev/apiserver/resource"
)

// decodeQuery sets the fields of options from the query parameters.
func decodeQuery(query url.Values, options runtime.Object) error {
	if len(query) == 0 {
		return nil
	}
	if err := internalscheme.ParameterCodec.DecodeParameters(query, metav1.SchemeGroupVersion, options); err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	return nil
}

func invalidOptions(kind string, errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}
	return request.Invalid(schema.GroupKind{Group: metav1.GroupName, Kind: kind}, "", errs)
}

// listOptions decodes the options of list, watch and deletecollection. A name in the path becomes a field selector on
// metadata.name.
func (c *call) listOptions() (*internalversion.ListOptions, registry.Selection, error) {
	options := &internalversion.ListOptions{}
	var selection registry.Selection
	if err := decodeQuery(c.record.Query(), options); err != nil {
		return nil, selection, err
	}
	watchList := utilfeature.DefaultFeatureGate.Enabled(features.WatchList)
	internalversion.SetListOptionsDefaults(options, watchList)
	if err := invalidOptions("ListOptions", internalvalidation.ValidateListOptions(options, watchList)); err != nil {
		return nil, selection, err
	}
	if options.LabelSelector != nil && !options.LabelSelector.Empty() {
		if err := checkLabelSelector(options.LabelSelector); err != nil {
			return nil, selection, err
		}
		selection.Label = options.LabelSelector
	}
	var err error
	if options.ShardSelector != "" && utilfeature.DefaultFeatureGate.Enabled(features.ShardedListAndWatch) {
		if selection.Shard, err = registry.ParseShard(options.ShardSelector); err != nil {
			return nil, selection, fmt.Errorf("invalid shard selector: %w", err)
		}
		if err := checkSize("shardSelector", selection.Shard.Size(), 0); err != nil {
			return nil, selection, err
		}
	}
	selection.Field, err = c.fieldSelector(options.FieldSelector)
	return options, selection, err
}

// fieldSelector converts the field labels of a selector to field labels of the internal version, and adds the name in
// the path.
func (c *call) fieldSelector(selector fields.Selector) (fields.Selector, error) {
	name := c.record.Info.Name
	if selector != nil && !selector.Empty() {
		if err := checkFieldSelector(selector); err != nil {
			return nil, err
		}
		translated, err := selector.Transform(c.target.Version.FieldLabel)
		if err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		if name == "" {
			return translated, nil
		}
		if selected, ok := translated.RequiresExactMatch("metadata.name"); !ok || selected != name {
			return nil, apierrors.NewBadRequest("fieldSelector metadata.name doesn't match requested name")
		}
		return translated, nil
	}
	if name == "" {
		return nil, nil
	}
	return fields.OneTermEqualSelector("metadata.name", name), nil
}

// writeOptions returns the registry's options for a create, update or patch.
func (c *call) writeOptions(dryRun []string, manager string, options runtime.Object) registry.WriteOptions {
	return registry.WriteOptions{
		DryRun: len(dryRun) > 0, Manager: managerOrAgent(manager, c.r), Options: options, Authorizer: c.Authorizer,
	}
}

// managerOrAgent returns the fieldManager option or, if it is empty, the prefix of the user agent that kube-apiserver
// uses as the field manager: up to the first slash or unprintable character, at most 128 characters.
func managerOrAgent(manager string, r *http.Request) string {
	if manager != "" {
		return manager
	}
	const maxLength = 128
	agent := []rune(r.UserAgent())
	for i, char := range agent {
		if char == '/' || i == maxLength || !unicode.IsPrint(char) {
			return string(agent[:i])
		}
	}
	return string(agent)
}

func (c *call) createOptions() (*metav1.CreateOptions, error) {
	options := &metav1.CreateOptions{}
	if err := decodeQuery(c.record.Query(), options); err != nil {
		return nil, err
	}
	return options, invalidOptions("CreateOptions", validation.ValidateCreateOptions(options))
}

func (c *call) updateOptions() (*metav1.UpdateOptions, error) {
	options := &metav1.UpdateOptions{}
	if err := decodeQuery(c.record.Query(), options); err != nil {
		return nil, err
	}
	return options, invalidOptions("UpdateOptions", validation.ValidateUpdateOptions(options))
}

func (c *call) patchOptions(patch types.PatchType) (*metav1.PatchOptions, error) {
	options := &metav1.PatchOptions{}
	if err := decodeQuery(c.record.Query(), options); err != nil {
		return nil, err
	}
	return options, invalidOptions("PatchOptions", validation.ValidatePatchOptions(options, patch))
}

// deleteOptions decodes DeleteOptions from the body or, if the body is empty, from the query parameters.
func (c *call) deleteOptions() (*metav1.DeleteOptions, error) {
	body, err := c.record.Body(c.r)
	if err != nil {
		return nil, err
	}
	options := &metav1.DeleteOptions{}
	if len(body) == 0 {
		err = decodeQuery(c.record.Query(), options)
	} else {
		options, err = c.decodeDeleteOptions(body)
	}
	if err != nil {
		return nil, err
	}
	if !c.Registry.DeletesUnreadable() {
		options.IgnoreStoreReadErrorWithClusterBreakingPotential = nil
	}
	return options, invalidOptions("DeleteOptions", validation.ValidateDeleteOptions(options))
}

func (c *call) decodeDeleteOptions(body []byte) (*metav1.DeleteOptions, error) {
	mediaType, err := contentType(c.r, mediaTypes())
	if err != nil {
		return nil, err
	}
	info, _ := runtime.SerializerInfoForMediaType(internalscheme.Codecs.SupportedMediaTypes(), mediaType)
	if mediaType == runtime.ContentTypeCBOR {
		info = cbor.NewSerializerInfo(internalscheme.Scheme, internalscheme.Scheme)
	}
	kind := metav1.SchemeGroupVersion.WithKind("DeleteOptions")
	if err := c.deleteOptionsGuard.Check(body, mediaType, kind); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	options := &metav1.DeleteOptions{}
	decoder := internalscheme.Codecs.DecoderToVersion(info.Serializer, kind.GroupVersion())
	decoded, declared, err := decoder.Decode(body, &kind, options)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if decoded != runtime.Object(options) {
		return nil, apierrors.NewBadRequest("decoded object cannot be converted to DeleteOptions")
	}
	c.auditDeleteOptions(options, declared.GroupVersion())
	return options, nil
}

// fieldValidation returns the value of the fieldValidation option; the default is Warn.
func fieldValidation(value string) resource.FieldValidation {
	if value == "" {
		return resource.Warn
	}
	return resource.FieldValidation(value)
}
