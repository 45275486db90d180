package crd_test

import (
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/crd"
	"quorate.dev/apiserver/lazy"
	"quorate.dev/apiserver/resource"
)

func TestDefinitionsThatCannotBeServed(t *testing.T) {
	t.Parallel()
	builder, err := crd.NewBuilder(&lazy.Set{}, newConverters(t), clock.RealClock{})
	if err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*apiextensionsv1.CustomResourceDefinition){
		"CustomResourceDefinition widgets.example.com has no accepted names yet": func(
			d *apiextensionsv1.CustomResourceDefinition,
		) {
			d.Status.AcceptedNames.ListKind = ""
		},
		"CustomResourceDefinition widgets.example.com has no storage version": func(
			d *apiextensionsv1.CustomResourceDefinition,
		) {
			d.Spec.Versions[0].Storage = false
		},
	} {
		definition := sample(t)
		definition.Status = crd.Conditions(definition, crd.Claim(), true)
		change(definition)
		if _, err := builder.Definition(definition); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// TestDeprecation checks the warnings of deprecated versions. As with kube-apiserver, the default warning recommends
// the newest served version that is newer and not deprecated.
func TestDeprecation(t *testing.T) {
	t.Parallel()
	own := "Widgets of v1beta1 are gone soon"
	for name, test := range map[string]struct {
		change func(versions []apiextensionsv1.CustomResourceDefinitionVersion)
		want   string
	}{
		"a newer version": {
			func([]apiextensionsv1.CustomResourceDefinitionVersion) {},
			"example.com/v1beta1 Widget is deprecated; use example.com/v1 Widget",
		},
		"the newer version is deprecated": {
			func(versions []apiextensionsv1.CustomResourceDefinitionVersion) { versions[0].Deprecated = true },
			"example.com/v1beta1 Widget is deprecated",
		},
		"the newer version is not served": {
			func(versions []apiextensionsv1.CustomResourceDefinitionVersion) { versions[0].Served = false },
			"example.com/v1beta1 Widget is deprecated",
		},
		"a warning of its own": {
			func(versions []apiextensionsv1.CustomResourceDefinitionVersion) {
				versions[1].DeprecationWarning = &own
			}, own,
		},
	} {
		definition := sample(t)
		test.change(definition.Spec.Versions)
		if got := define(t, definition).Version("v1beta1").Deprecation; got != test.want {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
}

// TestTransferChangesTheRevision: existing watches end when a transfer of the objects begins or ends.
func TestTransferChangesTheRevision(t *testing.T) {
	t.Parallel()
	definition := sample(t)
	definition.UID, definition.Generation = "1234", 3
	before := define(t, definition)
	definition.Annotations = map[string]string{crd.TransferAnnotation: ""}
	during := define(t, definition)
	if before.Transferring || !during.Transferring {
		t.Errorf("transferring is %t before, %t during the transfer", before.Transferring, during.Transferring)
	}
	if before.Revision != "1234/3" || during.Revision == before.Revision {
		t.Errorf("revision is %s before, %s during the transfer", before.Revision, during.Revision)
	}
}

// TestDefinitionsWithoutUsableSchemas reads definitions that only former releases of Kubernetes accepted, and that
// etcd may still hold.
func TestDefinitionsWithoutUsableSchemas(t *testing.T) {
	t.Parallel()
	body := []byte(head + `{"a":1}}`)
	decode := func(t *testing.T, v *resource.Version) runtime.Object {
		t.Helper()
		object, _, _, err := v.Codec.Decode(body, runtime.ContentTypeJSON, resource.Ignore)
		if err != nil {
			t.Fatal(err)
		}
		return object
	}
	t.Run("no schema: all fields are unknown", func(t *testing.T) {
		definition := sample(t)
		definition.Spec.Versions[0].Schema = nil
		v := define(t, definition).Version("v1")
		object := decode(t, v)
		if got := specOf(t, object); got != "null" {
			t.Errorf("spec %s was kept", got)
		}
		v.Codec.Default(object)
		if got := specOf(t, object); got != "null" {
			t.Errorf("spec has the defaults %s", got)
		}
	})
	t.Run("unknown fields are preserved", func(t *testing.T) {
		definition := sample(t)
		definition.Spec.PreserveUnknownFields = true
		object := decode(t, define(t, definition).Version("v1"))
		if got := specOf(t, object); got != `{"a":1,"color":"red","replicas":1}` {
			t.Errorf("spec %s", got)
		}
	})
	t.Run("no structural schema: reads and writes fail", func(t *testing.T) {
		definition := sample(t)
		definition.Spec.Versions[0].Schema.OpenAPIV3Schema.Items = &apiextensionsv1.JSONSchemaPropsOrArray{
			JSONSchemas: []apiextensionsv1.JSONSchemaProps{{Type: "string"}},
		}
		v := define(t, definition).Version("v1")
		if _, _, _, err := v.Codec.Decode(body, runtime.ContentTypeJSON, resource.Ignore); err == nil ||
			!strings.Contains(err.Error(), "schema of example.com/v1, Kind=Widget is not structural") {
			t.Errorf("decode: %v", err)
		}
		if _, err := v.Codec.Load(t.Context(), storedWidget("v1", "a")); err == nil {
			t.Error("a stored object was read")
		}
		const want = "the server could not properly serve the CR schema"
		w := newWidget("w")
		for name, endpoint := range map[string]string{"update": "", "update of the status": "status"} {
			if got := messages(v.Endpoints[endpoint].Update.ValidateUpdate(t.Context(), w, w)); !strings.Contains(got, want) {
				t.Errorf("%s: got %s", name, got)
			}
		}
		if got := messages(v.Endpoints[""].Create.Validate(t.Context(), w)); !strings.Contains(got, want) {
			t.Errorf("create: got %s", got)
		}
	})
}
