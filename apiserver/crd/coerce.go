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
	// repair drops malformed metadata and sets a missing generation, so that objects can be read that were stored
	// before these fields were validated.
	repair bool
	// track reports the paths of dropped fields.
	track bool
}

// coerce changes an unstructured object in the same way as decoding into Go types would: it validates the types of
// metadata, drops fields that are not in the schema, and removes null values that the schema does not allow and for
// which it has no default. It mirrors unstructuredSchemaCoercer.apply. It uses the schema of the version that the
// object declares, whatever the version of the codec. Objects of other kinds, such as DeleteOptions, keep their
// content.
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

// repairGeneration sets the generation of objects that were stored by releases without generations of custom resources.
func repairGeneration(metadata *metav1.ObjectMeta, how coercion) {
	if how.repair && metadata != nil && metadata.Generation == 0 {
		metadata.Generation = 1
	}
}

// coerceContent coerces an object with the schema of a version. If v is nil, because the object declares a version that
// the CRD does not have, all fields are unknown. The root of the object is a resource: its apiVersion, kind and
// metadata, which the schema need not contain, are removed and restored by the caller.
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
		unknown = pruning.PruneWithOptions(content, structural, true,
			structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: how.track})
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
