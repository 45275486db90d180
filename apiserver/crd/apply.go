package crd

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"quorate.dev/apiserver/lazy"
)

// types is the type converter of all versions of a custom resource, created on first use.
type types struct {
	converter lazy.Value[managedfields.TypeConverter]
}

// typeConverter covers all versions: managed fields may be recorded in any of them.
func (c *custom) typeConverter() (managedfields.TypeConverter, error) {
	return c.types.converter.Get(c.idle, func() (managedfields.TypeConverter, error) {
		models := metadataModels()
		models["io.k8s.api.autoscaling.v1.Scale"] = scaleModel()
		for _, v := range c.versions {
			published, err := v.published(V3)
			if err != nil {
				return nil, err
			}
			models[ModelName(v.kind)] = published
		}
		converter, err := managedfields.NewTypeConverter(models, c.preserve)
		if err != nil {
			return nil, fmt.Errorf("types of %s in %s: %w", c.kind, c.group, err)
		}
		return converter, nil
	})
}

// fieldManager returns a function that returns the field manager of an endpoint, created on first use.
func (v *version) fieldManager(kind schema.GroupVersionKind, subresource string, reset map[fieldpath.APIVersion]*fieldpath.Set) func() (*managedfields.FieldManager, error) {
	made := &lazy.Value[*managedfields.FieldManager]{}
	return func() (*managedfields.FieldManager, error) {
		return made.Get(v.of.idle, func() (*managedfields.FieldManager, error) {
			converter, err := v.of.typeConverter()
			if err != nil {
				return nil, err
			}
			return managedfields.NewDefaultCRDFieldManager(converter, v.of, v.of, v.of, kind, v.kind.GroupVersion(), subresource, fieldpath.NewExcludeFilterSetMap(reset))
		})
	}
}

// resetFields are the fields that writes to the main endpoint do not change.
func (c *custom) resetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	reset := map[fieldpath.APIVersion]*fieldpath.Set{}
	for _, v := range c.versions {
		if v.status {
			reset[fieldpath.APIVersion(v.kind.GroupVersion().String())] = fieldpath.NewSet(fieldpath.MakePathOrDie("status"))
		}
	}
	return reset
}

// statusResetFields are the fields that writes to the status subresource do not change.
func (c *custom) statusResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	reset := map[fieldpath.APIVersion]*fieldpath.Set{}
	for _, v := range c.versions {
		if v.status {
			reset[fieldpath.APIVersion(v.kind.GroupVersion().String())] = fieldpath.NewSet(
				fieldpath.MakePathOrDie("metadata"), fieldpath.MakePathOrDie("spec"))
		}
	}
	return reset
}

// metadataModels are the models of object metadata, reduced to their structure, which is all that merging needs.
func metadataModels() map[string]*spec.Schema {
	const prefix = "io.k8s.apimachinery.pkg.apis.meta.v1."
	time := spec.DateTimeProperty()
	owner := object(map[string]*spec.Schema{
		"apiVersion": spec.StringProperty(), "kind": spec.StringProperty(), "name": spec.StringProperty(), "uid": spec.StringProperty(),
		"controller": spec.BooleanProperty(), "blockOwnerDeletion": spec.BooleanProperty(),
	})
	owner.AddExtension("x-kubernetes-map-type", "atomic")
	owners := spec.ArrayProperty(spec.RefSchema(V3.Reference(prefix + "OwnerReference")))
	owners.AddExtension("x-kubernetes-list-type", "map")
	owners.AddExtension("x-kubernetes-list-map-keys", []any{"uid"})
	finalizers := spec.ArrayProperty(spec.StringProperty())
	finalizers.AddExtension("x-kubernetes-list-type", "set")
	managers := spec.ArrayProperty(spec.RefSchema(V3.Reference(prefix + "ManagedFieldsEntry")))
	managers.AddExtension("x-kubernetes-list-type", "atomic")
	metadata := object(map[string]*spec.Schema{
		"annotations": spec.MapProperty(spec.StringProperty()), "labels": spec.MapProperty(spec.StringProperty()),
		"creationTimestamp": time, "deletionTimestamp": time, "deletionGracePeriodSeconds": spec.Int64Property(),
		"generation": spec.Int64Property(), "generateName": spec.StringProperty(), "name": spec.StringProperty(),
		"namespace": spec.StringProperty(), "resourceVersion": spec.StringProperty(), "selfLink": spec.StringProperty(),
		"uid": spec.StringProperty(), "finalizers": finalizers, "ownerReferences": owners, "managedFields": managers,
	})
	manager := object(map[string]*spec.Schema{
		"apiVersion": spec.StringProperty(), "fieldsType": spec.StringProperty(), "manager": spec.StringProperty(),
		"operation": spec.StringProperty(), "subresource": spec.StringProperty(), "time": time, "fieldsV1": object(nil),
	})
	return map[string]*spec.Schema{
		objectMetaModel:               metadata,
		prefix + "OwnerReference":     owner,
		prefix + "ManagedFieldsEntry": manager,
	}
}

// scaleModel is the structure of autoscaling/v1 Scale.
func scaleModel() *spec.Schema {
	s := object(map[string]*spec.Schema{
		"apiVersion": spec.StringProperty(), "kind": spec.StringProperty(),
		"metadata": spec.RefSchema(V3.Reference(objectMetaModel)),
		"spec":     object(map[string]*spec.Schema{"replicas": spec.Int32Property()}),
		"status":   object(map[string]*spec.Schema{"replicas": spec.Int32Property(), "selector": spec.StringProperty()}),
	})
	s.AddExtension(extensionKind, []any{map[string]any{"group": ScaleKind.Group, "version": ScaleKind.Version, "kind": ScaleKind.Kind}})
	return s
}

func object(properties map[string]*spec.Schema) *spec.Schema {
	s := new(spec.Schema).Typed("object", "")
	for name, property := range properties {
		s.SetProperty(name, *property)
	}
	return s
}
