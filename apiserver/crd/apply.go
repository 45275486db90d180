package crd

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"quorate.dev/apiserver/lazy"
)

// types creates the type converter of all versions of a custom resource on first use. It must not be copied.
type types struct {
	converter lazy.Value[managedfields.TypeConverter]
}

// typeConverter returns the type converter of the field managers. It covers all versions, because managed fields may be
// recorded in any of them, and Scale. It mirrors buildOpenAPIModelsForApply of apiextensions-apiserver, which merges
// the schemas into the static OpenAPI models of the server; here only the models of metadata and Scale are added. It is
// built on first use and dropped when it is idle.
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

// fieldManager returns a function that returns the field manager of an endpoint, created on first use. reset has the
// fields, by version, that writes to the endpoint do not change; the manager never becomes their owner.
func (v *version) fieldManager(
	kind schema.GroupVersionKind, subresource string, reset map[fieldpath.APIVersion]*fieldpath.Set,
) func() (*managedfields.FieldManager, error) {
	made := &lazy.Value[*managedfields.FieldManager]{}
	return func() (*managedfields.FieldManager, error) {
		return made.Get(v.of.idle, func() (*managedfields.FieldManager, error) {
			converter, err := v.of.typeConverter()
			if err != nil {
				return nil, err
			}
			return managedfields.NewDefaultCRDFieldManager(converter, v.of, v.of, v.of, kind, v.kind.GroupVersion(), subresource,
				fieldpath.NewExcludeFilterSetMap(reset))
		})
	}
}

// resetFields returns the fields that writes to the main endpoint do not change: status, in the versions that have it
// as a subresource. It mirrors GetResetFields of customResourceStrategy for all versions together.
func (c *custom) resetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	reset := map[fieldpath.APIVersion]*fieldpath.Set{}
	for _, v := range c.versions {
		if v.status {
			reset[fieldpath.APIVersion(v.kind.GroupVersion().String())] = fieldpath.NewSet(fieldpath.MakePathOrDie("status"))
		}
	}
	return reset
}

// statusResetFields returns the fields that writes to the status subresource do not change. As upstream, it names only
// metadata and spec, although statusStrategy keeps all other top-level fields too.
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

// metadataModels returns the OpenAPI models of object metadata. They have only the structure, because merging of
// managed fields needs nothing else.
func metadataModels() map[string]*spec.Schema {
	const prefix = "io.k8s.apimachinery.pkg.apis.meta.v1."
	time := spec.DateTimeProperty()
	owner := object(map[string]*spec.Schema{
		"apiVersion": spec.StringProperty(), "kind": spec.StringProperty(), "name": spec.StringProperty(),
		"uid": spec.StringProperty(), "controller": spec.BooleanProperty(), "blockOwnerDeletion": spec.BooleanProperty(),
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

// scaleModel returns the structure of autoscaling/v1 Scale, the kind of the scale subresource.
func scaleModel() *spec.Schema {
	s := object(map[string]*spec.Schema{
		"apiVersion": spec.StringProperty(), "kind": spec.StringProperty(),
		"metadata": spec.RefSchema(V3.Reference(objectMetaModel)),
		"spec":     object(map[string]*spec.Schema{"replicas": spec.Int32Property()}),
		"status":   object(map[string]*spec.Schema{"replicas": spec.Int32Property(), "selector": spec.StringProperty()}),
	})
	s.AddExtension(extensionKind, []any{
		map[string]any{"group": ScaleKind.Group, "version": ScaleKind.Version, "kind": ScaleKind.Kind},
	})
	return s
}

func object(properties map[string]*spec.Schema) *spec.Schema {
	s := new(spec.Schema).Typed("object", "")
	for name, property := range properties {
		s.SetProperty(name, *property)
	}
	return s
}
