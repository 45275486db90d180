package crd

import (
	"fmt"
	"slices"
	"strings"

	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	openapiv2 "k8s.io/apiextensions-apiserver/pkg/controller/openapi/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"quorate.dev/apiserver/resource"
)

const (
	objectMetaModel = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"

	extensionKind = "x-kubernetes-group-version-kind"
)

// Dialect is a version of OpenAPI.
type Dialect int

const (
	V2 Dialect = 2
	V3 Dialect = 3
)

// Reference returns the JSON reference to a model.
func (d Dialect) Reference(model string) string {
	if d == V2 {
		return "#/definitions/" + model
	}
	return "#/components/schemas/" + model
}

// Described returns a schema that refers to a model and has a description. OpenAPI version 3 ignores siblings of a
// reference, so that the reference is in allOf.
func (d Dialect) Described(model, description string) *spec.Schema {
	reference := spec.RefSchema(d.Reference(model))
	if d == V2 {
		return reference.WithDescription(description)
	}
	return new(spec.Schema).WithAllOf(*reference).WithDescription(description)
}

// ModelName returns the name of a kind's model in OpenAPI documents: reversed group, version, kind.
func ModelName(kind schema.GroupVersionKind) string {
	parts := strings.Split(kind.Group, ".")
	slices.Reverse(parts)
	return strings.Join(parts, ".") + "." + kind.Version + "." + kind.Kind
}

// Schema returns the published schema of a served custom resource: the author's schema, completed by apiVersion, kind
// and metadata. Each call builds a new schema, which the caller owns: nothing of it is kept in memory, because OpenAPI
// documents are built rarely. It mirrors BuildOpenAPIV2 and BuildOpenAPIV3 of apiextensions-apiserver.
func Schema(served *resource.Version, dialect Dialect) (*spec.Schema, error) {
	m, ok := served.Codec.(*customCodec)
	if !ok {
		return nil, fmt.Errorf("%s is not a custom resource", served.Kind)
	}
	return m.version.published(dialect)
}

// SelectableFields returns the paths of spec.versions[*].selectableFields of a custom resource, without metadata.name
// and metadata.namespace, which are always selectable.
func SelectableFields(served *resource.Version) []string {
	m, ok := served.Codec.(*customCodec)
	if !ok {
		return nil
	}
	var paths []string
	for _, f := range m.version.selectable {
		paths = append(paths, strings.TrimPrefix(f.JSONPath, "."))
	}
	return paths
}

// published implements Schema. For a schema that is not structural it returns an object without properties.
func (v *version) published(dialect Dialect) (*spec.Schema, error) {
	structural, err := v.publishable()
	if err != nil {
		return nil, err
	}
	published := complete(structural, dialect, v.of.preserve)
	published.AddExtension(extensionKind, []any{map[string]any{
		"group": v.kind.Group, "version": v.kind.Version, "kind": v.kind.Kind,
	}})
	return published, nil
}

// publishable returns a copy of the structural schema. It returns nil if the version has no structural schema.
func (v *version) publishable() (*structuralschema.Structural, error) {
	if v.schema == nil {
		return nil, nil
	}
	internal, err := v.internalSchema()
	if err != nil {
		return nil, err
	}
	structural, err := structuralschema.NewStructural(internal)
	if err != nil || len(structuralschema.ValidateStructural(nil, structural)) > 0 {
		return nil, nil
	}
	return structural.Unfold(), nil
}

// complete adds apiVersion, kind and metadata to a schema. If unknown fields are preserved, a version 2 schema must not
// have properties, because clients would reject all fields that are not listed. Version 2 also cannot express some
// constructs of version 3, such as nullable and oneOf, which upstream's ToStructuralOpenAPIV2 removes.
func complete(structural *structuralschema.Structural, dialect Dialect, preserve bool) *spec.Schema {
	if structural == nil || dialect == V2 && (structural.XPreserveUnknownFields || preserve) {
		return new(spec.Schema).Typed("object", "")
	}
	if dialect == V2 {
		structural = openapiv2.ToStructuralOpenAPIV2(structural)
		removeDefaults(structural)
	}
	published := structural.ToKubeOpenAPI()
	addObjectProperties(published, dialect)
	addEmbedded(published, dialect)
	return published
}

// removeDefaults removes the defaults from a schema. As in kube-apiserver, they are not published in OpenAPI version 2
// documents.
func removeDefaults(structural *structuralschema.Structural) {
	visitor := structuralschema.Visitor{Structural: func(s *structuralschema.Structural) bool {
		changed := s.Default.Object != nil
		s.Default.Object = nil
		return changed
	}}
	visitor.Visit(structural)
}

// addObjectProperties adds apiVersion, kind and metadata with the descriptions that built-in kinds have. They replace
// the properties of the author's schema for these fields.
func addObjectProperties(s *spec.Schema, dialect Dialect) {
	s.SetProperty("metadata", *dialect.Described(objectMetaModel, metav1.PartialObjectMetadata{}.SwaggerDoc()["metadata"]))
	AddTypeProperties(s)
}

// AddTypeProperties adds apiVersion and kind.
func AddTypeProperties(s *spec.Schema) {
	documentation := metav1.TypeMeta{}.SwaggerDoc()
	for _, name := range []string{"apiVersion", "kind"} {
		s.SetProperty(name, *spec.StringProperty().WithDescription(documentation[name]))
	}
}

// addEmbedded adds apiVersion, kind and metadata to embedded resources (x-kubernetes-embedded-resource).
func addEmbedded(s *spec.Schema, dialect Dialect) {
	if s == nil {
		return
	}
	for name, property := range s.Properties {
		addEmbedded(&property, dialect)
		s.Properties[name] = property
	}
	if s.Items != nil {
		addEmbedded(s.Items.Schema, dialect)
	}
	if s.AdditionalProperties != nil {
		addEmbedded(s.AdditionalProperties.Schema, dialect)
	}
	if open, _ := s.Extensions.GetBool("x-kubernetes-preserve-unknown-fields"); open && dialect == V2 {
		return
	}
	if embedded, _ := s.Extensions.GetBool("x-kubernetes-embedded-resource"); !embedded {
		return
	}
	addObjectProperties(s, dialect)
	s.Properties["apiVersion"] = *spec.StringProperty().WithDescription("apiVersion defines the versioned schema of " +
		"this representation of an object. More info: " +
		"https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#resources")
	s.Properties["kind"] = *spec.StringProperty().WithDescription("kind is a string value representing the type of this " +
		"object. In CamelCase. More info: " +
		"https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds")
	for _, name := range []string{"kind", "apiVersion"} {
		if !slices.Contains(s.Required, name) {
			s.Required = append(s.Required, name)
		}
	}
}
