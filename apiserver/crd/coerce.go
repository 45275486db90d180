package crd

import (
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	structuraldefaulting "k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// coercion configures coerce.
type coercion struct {
	// repair drops malformed metadata and restores a missing generation, so that objects stored before validation
	// existed stay readable.
	repair bool
	// track reports the paths of dropped fields.
	track bool
}

// coerce does in place what decoding into Go types does: it types metadata, drops fields that are not in the schema,
// and replaces null where it is not allowed.
func (c *custom) coerce(object *unstructured.Unstructured, how coercion) (unknown []string, err error) {
	kind, hasKind, err := unstructured.NestedString(object.Object, "kind")
	if err != nil {
		return nil, err
	}
	apiVersion, hasVersion, err := unstructured.NestedString(object.Object, "apiVersion")
	if err != nil {
		return nil, err
	}
	groupVersion, err := schema.ParseGroupVersion(apiVersion)
	if err != nil {
		return nil, err
	}
	metadata, hasMetadata, unknown, err := objectmeta.GetObjectMetaWithOptions(object.Object, objectmeta.ObjectMetaOptions{
		DropMalformedFields: how.repair, ReturnUnknownFieldPaths: how.track,
	})
	if err != nil {
		return nil, err
	}
	if groupVersion.Group == c.group && kind == c.kind {
		dropped, err := c.coerceContent(object.Object, c.versions[groupVersion.Version], how)
		if err != nil {
			return nil, err
		}
		unknown = append(unknown, dropped...)
		repairGeneration(metadata, how)
	}
	// Pruning removes these fields, so they are restored.
	if hasKind {
		object.SetKind(kind)
	}
	if hasVersion {
		object.SetAPIVersion(apiVersion)
	}
	if hasMetadata {
		return unknown, objectmeta.SetObjectMeta(object.Object, metadata)
	}
	return unknown, nil
}

func repairGeneration(metadata *metav1.ObjectMeta, how coercion) {
	if how.repair && metadata != nil && metadata.Generation == 0 {
		metadata.Generation = 1
	}
}

// coerceContent coerces with the schema of a version. Without a version all fields are unknown.
func (c *custom) coerceContent(content map[string]any, v *version, how coercion) ([]string, error) {
	var structural *structuralschema.Structural
	if v != nil {
		var err error
		if structural, err = v.structural(); err != nil {
			return nil, err
		}
	}
	var unknown []string
	if !c.preserve {
		unknown = pruning.PruneWithOptions(content, structural, true, structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: how.track})
		structuraldefaulting.PruneNonNullableNullsWithoutDefaults(content, structural)
	}
	fieldErr, paths := objectmeta.CoerceWithOptions(nil, content, structural, false, objectmeta.CoerceOptions{
		DropInvalidFields: how.repair, ReturnUnknownFieldPaths: how.track,
	})
	if fieldErr != nil {
		return nil, fieldErr
	}
	return append(unknown, paths...), nil
}
