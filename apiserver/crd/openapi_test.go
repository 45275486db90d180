package crd_test

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"k8s.io/kube-openapi/pkg/validation/spec"

	"quorate.dev/apiserver/crd"
	"quorate.dev/apiserver/resource"
)

func published(t *testing.T, v *resource.Version, dialect crd.Dialect) *spec.Schema {
	t.Helper()
	schema, err := crd.Schema(v, dialect)
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

// TestSchema publishes the same definition in both dialects of OpenAPI, which differ as kube-apiserver's do: version 2
// has neither defaults nor the properties of objects with unknown fields, and a reference there may have siblings.
func TestSchema(t *testing.T) {
	t.Parallel()
	v := define(t, sample(t)).Version("v1")
	for _, test := range []struct {
		name               string
		dialect            crd.Dialect
		metadata           string   // JSON of the reference in the property metadata
		defaultColor       any      // published default of spec.color
		templateProperties []string // published properties of the embedded resource
	}{
		{"version 2", crd.V2, `"$ref":"#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"`, nil, nil},
		{
			"version 3", crd.V3, `"allOf":[{"$ref":"#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"}]`,
			"red", []string{"apiVersion", "kind", "metadata"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			schema := published(t, v, test.dialect)
			if got, want := slices.Sorted(maps.Keys(schema.Properties)),
				[]string{"apiVersion", "kind", "metadata", "spec", "status"}; !slices.Equal(got, want) {
				t.Errorf("properties %q, want %q", got, want)
			}
			metadata, err := json.Marshal(schema.Properties["metadata"])
			if err != nil || !strings.Contains(string(metadata), test.metadata) {
				t.Errorf("metadata is %s, want %s: %v", metadata, test.metadata, err)
			}
			properties := schema.Properties["spec"].Properties
			if got := properties["color"].Default; got != test.defaultColor {
				t.Errorf("default of the color is %v, want %v", got, test.defaultColor)
			}
			if got := slices.Sorted(maps.Keys(properties["template"].Properties)); !slices.Equal(got, test.templateProperties) {
				t.Errorf("properties of the embedded resource are %q, want %q", got, test.templateProperties)
			}
			kinds, err := json.Marshal(schema.Extensions["x-kubernetes-group-version-kind"])
			if want := `[{"group":"example.com","kind":"Widget","version":"v1"}]`; err != nil || string(kinds) != want {
				t.Errorf("kinds are %s, want %s: %v", kinds, want, err)
			}
		})
	}
}

// TestSchemaWithoutProperties publishes only the type of an object if clients must not reject fields that the schema
// does not list.
func TestSchemaWithoutProperties(t *testing.T) {
	t.Parallel()
	open := define(t, sample(t)).Version("v1beta1") // preserves unknown fields
	if schema := published(t, open, crd.V2); len(schema.Properties) > 0 || !schema.Type.Contains("object") {
		t.Errorf("version 2 of a schema with unknown fields: %v", schema)
	}
	if schema := published(t, open, crd.V3); len(schema.Properties) != 3 {
		t.Errorf("version 3 of a schema with unknown fields lacks apiVersion, kind or metadata: %v", schema.Properties)
	}
	definition := sample(t)
	definition.Spec.Versions[0].Schema = nil
	without := define(t, definition).Version("v1")
	for _, dialect := range []crd.Dialect{crd.V2, crd.V3} {
		if schema := published(t, without, dialect); len(schema.Properties) > 0 || !schema.Type.Contains("object") {
			t.Errorf("version %d without a schema: %v", dialect, schema)
		}
	}
}

func TestSelectableFields(t *testing.T) {
	t.Parallel()
	d := define(t, sample(t))
	if got := crd.SelectableFields(d.Version("v1")); !slices.Equal(got, []string{"spec.color"}) {
		t.Errorf("v1: %q", got)
	}
	if got := crd.SelectableFields(d.Version("v1beta1")); len(got) > 0 {
		t.Errorf("v1beta1: %q", got)
	}
	builtIn := &resource.Version{}
	if got := crd.SelectableFields(builtIn); got != nil {
		t.Errorf("a built-in resource: %q", got)
	}
	if _, err := crd.Schema(builtIn, crd.V3); err == nil {
		t.Error("a built-in resource has the schema of a custom resource")
	}
}
