package crd

import (
	"context"
	"encoding/json"
	"fmt"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"quorate.dev/apiserver/deflate"
	"quorate.dev/apiserver/lazy"
)

// custom has the parts of a custom resource that all of its versions share.
type custom struct {
	group      string
	kind       string
	namespaced bool
	// preserve is spec.preserveUnknownFields, which is deprecated: if it is set, the objects of no version are pruned.
	preserve bool
	// webhook converts between versions. It is nil for conversion strategy None, which only changes apiVersion.
	webhook *webhook
	// storage is the storage version.
	storage string
	// versions has all versions by name, including unserved versions, in which objects may be stored.
	versions map[string]*version

	types types
	idle  *lazy.Set // drops schemas, validators and type converters of versions when they are idle
}

// newCustom returns the custom of a CustomResourceDefinition. It compresses the schemas and parses nothing else.
func newCustom(crd *apiextensionsv1.CustomResourceDefinition, idle *lazy.Set) (*custom, error) {
	c := &custom{
		idle:       idle,
		group:      crd.Spec.Group,
		kind:       crd.Status.AcceptedNames.Kind,
		namespaced: crd.Spec.Scope == apiextensionsv1.NamespaceScoped,
		preserve:   crd.Spec.PreserveUnknownFields,
		versions:   make(map[string]*version, len(crd.Spec.Versions)),
	}
	for i := range crd.Spec.Versions {
		v, err := newVersion(c, &crd.Spec.Versions[i])
		if err != nil {
			return nil, fmt.Errorf("version %s of CustomResourceDefinition %s: %w", crd.Spec.Versions[i].Name, crd.Name, err)
		}
		c.versions[v.kind.Version] = v
		if crd.Spec.Versions[i].Storage {
			c.storage = v.kind.Version
		}
	}
	if c.storage == "" {
		return nil, fmt.Errorf("CustomResourceDefinition %s has no storage version", crd.Name)
	}
	return c, nil
}

// newVersion returns a version that holds the schema as compressed JSON: a decoded schema takes many times as much
// memory, and most definitions of a cluster have no traffic.
func newVersion(of *custom, spec *apiextensionsv1.CustomResourceDefinitionVersion) (*version, error) {
	v := &version{
		of:         of,
		kind:       schema.GroupVersionKind{Group: of.group, Version: spec.Name, Kind: of.kind},
		apiVersion: of.group + "/" + spec.Name,
		selectable: spec.SelectableFields,
	}
	if spec.Subresources != nil {
		v.status = spec.Subresources.Status != nil
		v.scale = spec.Subresources.Scale.DeepCopy()
	}
	if spec.Schema != nil && spec.Schema.OpenAPIV3Schema != nil {
		encoded, err := json.Marshal(spec.Schema.OpenAPIV3Schema)
		if err != nil {
			return nil, fmt.Errorf("encode schema: %w", err)
		}
		compressed, err := deflate.Compress(encoded)
		if err != nil {
			return nil, err
		}
		v.schema = &compressed
	}
	return v, nil
}

// Convert implements runtime.ObjectConvertor for field managers and admission. It does not change in. Upstream's
// interface has no context, so that a call of a conversion webhook lasts up to the timeout of the webhook.
func (c *custom) Convert(in, out, _ any) error {
	source, ok := in.(*unstructured.Unstructured)
	if !ok {
		return fmt.Errorf("cannot convert %T as a custom resource", in)
	}
	target, ok := out.(*unstructured.Unstructured)
	if !ok {
		return fmt.Errorf("cannot convert a custom resource to %T", out)
	}
	to := target.GroupVersionKind().GroupVersion()
	converted, err := c.convert(context.Background(), source.DeepCopy(), to)
	if err != nil {
		return err
	}
	target.Object = converted.Object
	return nil
}

// ConvertToVersion implements runtime.ObjectConvertor for field managers. It does not change in, and waits like
// Convert.
func (c *custom) ConvertToVersion(in runtime.Object, target runtime.GroupVersioner) (runtime.Object, error) {
	if scale, ok := in.(*autoscalingv1.Scale); ok { // Scale is served in one version only
		converted := scale.DeepCopy()
		converted.SetGroupVersionKind(ScaleKind)
		return converted, nil
	}
	object, ok := in.(*unstructured.Unstructured)
	if !ok {
		return nil, fmt.Errorf("cannot convert %T as a custom resource", in)
	}
	from := object.GroupVersionKind()
	to, ok := target.KindForGroupVersionKinds([]schema.GroupVersionKind{from})
	if !ok {
		return nil, fmt.Errorf("%v is unstructured and is not suitable for converting to %q", from, target)
	}
	converted, err := c.convert(context.Background(), object.DeepCopy(), to.GroupVersion())
	if err != nil {
		return nil, err
	}
	return converted, nil
}

// ConvertFieldLabel implements runtime.ObjectConvertor.
func (c *custom) ConvertFieldLabel(_ schema.GroupVersionKind, label, value string) (string, string, error) {
	return label, value, nil
}

// New implements runtime.ObjectCreater.
func (c *custom) New(kind schema.GroupVersionKind) (runtime.Object, error) {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(kind)
	return object, nil
}

// versionOf returns the version of an object, or nil if it is not an object of this resource.
func (c *custom) versionOf(object *unstructured.Unstructured) *version {
	kind := object.GroupVersionKind()
	if kind.Group != c.group || kind.Kind != c.kind {
		return nil
	}
	return c.versions[kind.Version]
}

// internalSchema decodes the schema into the internal version, which the validation libraries use. Each call decodes it
// again; the result is not kept.
func (v *version) internalSchema() (*apiextensions.JSONSchemaProps, error) {
	encoded, err := v.schema.Content()
	if err != nil {
		return nil, err
	}
	var external apiextensionsv1.JSONSchemaProps
	if err := json.Unmarshal(encoded, &external); err != nil {
		return nil, fmt.Errorf("decode schema: %w", err)
	}
	internal := &apiextensions.JSONSchemaProps{}
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(
		&external, internal, nil,
	); err != nil {
		return nil, fmt.Errorf("convert schema: %w", err)
	}
	return internal, nil
}
