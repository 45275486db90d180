package crd_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"quorate.dev/apiserver/crd"
	"quorate.dev/apiserver/lazy"
	"quorate.dev/apiserver/resource"
)

// define returns the definition of an established CustomResourceDefinition.
func define(t testing.TB, definition *apiextensionsv1.CustomResourceDefinition) *resource.Definition {
	t.Helper()
	builder, err := crd.NewBuilder(&lazy.Set{}, newConverters(t), clock.RealClock{})
	if err != nil {
		t.Fatal(err)
	}
	definition.Status = crd.Conditions(definition, crd.Claim(), true)
	made, err := builder.Definition(definition)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// withSchema returns version v1 of a definition with a schema of spec.
func withSchema(t testing.TB, spec string) *resource.Version {
	t.Helper()
	definition := sample(t)
	definition.Spec.Versions = definition.Spec.Versions[:1]
	v := &definition.Spec.Versions[0]
	v.Subresources, v.SelectableFields, v.AdditionalPrinterColumns = nil, nil, nil
	v.Schema = &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"}}
	var props apiextensionsv1.JSONSchemaProps
	if err := json.Unmarshal([]byte(spec), &props); err != nil {
		t.Fatal(err)
	}
	v.Schema.OpenAPIV3Schema.Properties = map[string]apiextensionsv1.JSONSchemaProps{"spec": props}
	return define(t, definition).Version("v1")
}

const head = `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"a"},"spec":`

// specOf encodes the spec of a decoded object.
func specOf(t testing.TB, object runtime.Object) string {
	t.Helper()
	encoded, err := json.Marshal(object.(*unstructured.Unstructured).Object["spec"])
	if err != nil {
		t.Fatal(err)
	}
	return string(encoded)
}

func TestDecode(t *testing.T) {
	for _, test := range []struct {
		name, schema, spec, want string
		strict                   []string
	}{
		{
			"unknown fields are pruned", `{"type":"object","properties":{"a":{"type":"string"}}}`, `{"a":"x","b":1}`,
			`{"a":"x"}`, []string{`unknown field "spec.b"`},
		},
		{
			"unknown fields are kept on request", `{"type":"object","x-kubernetes-preserve-unknown-fields":true}`,
			`{"b":1}`, `{"b":1}`, nil,
		},
		{
			"duplicate fields: the last wins", `{"type":"object","properties":{"a":{"type":"string"}}}`, `{"a":"x","a":"y"}`,
			`{"a":"y"}`, []string{`duplicate field "spec.a"`},
		},
		{"defaults", `{"type":"object","properties":{"a":{"type":"string","default":"d"}}}`, `{}`, `{"a":"d"}`, nil},
		{
			"null where it is not allowed becomes the default",
			`{"type":"object","properties":{"a":{"type":"string","default":"d"}}}`, `{"a":null}`, `{"a":"d"}`, nil,
		},
		{
			"null where it is not allowed and has no default goes",
			`{"type":"object","properties":{"a":{"type":"string"}}}`, `{"a":null}`, `{}`, nil,
		},
		{
			"null where it is allowed stays",
			`{"type":"object","properties":{"a":{"type":"string","nullable":true,"default":"d"}}}`, `{"a":null}`,
			`{"a":null}`, nil,
		},
		{"embedded metadata is pruned",
			`{"type":"object","properties":{"t":{"type":"object","x-kubernetes-embedded-resource":true}}}`,
			`{"t":{"apiVersion":"v1","kind":"Pod","metadata":{"name":"x","nope":1}}}`,
			`{"t":{"apiVersion":"v1","kind":"Pod","metadata":{"name":"x"}}}`, []string{`unknown field "spec.t.metadata.nope"`}},
	} {
		t.Run(test.name, func(t *testing.T) {
			v := withSchema(t, test.schema)
			object, kind, strict, err := v.Codec.Decode([]byte(head+test.spec+"}"), runtime.ContentTypeJSON, resource.Strict)
			if err != nil {
				t.Fatal(err)
			}
			if kind != v.Kind {
				t.Errorf("kind %v", kind)
			}
			if got := specOf(t, object); got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
			var messages []string
			for _, err := range strict {
				messages = append(messages, err.Error())
			}
			if difference := cmp.Diff(test.strict, messages); difference != "" {
				t.Error(difference)
			}
			if _, _, strict, _ := v.Codec.Decode(
				[]byte(head+test.spec+"}"), runtime.ContentTypeJSON, resource.Ignore,
			); len(strict) > 0 {
				t.Errorf("strict errors %v although ignored", strict)
			}
		})
	}
}

func TestDecodeRejects(t *testing.T) {
	v := withSchema(t, `{"type":"object"}`)
	for body, want := range map[string]string{
		`{`:                               "unexpected", // not JSON
		`{"apiVersion":"example.com/v1"}`: "Object 'Kind' is missing",
		`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"labels":{"a":true}}}`: "cannot unmarshal bool",
	} {
		if _, _, _, err := v.Codec.Decode([]byte(body), runtime.ContentTypeJSON, resource.Strict); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", body, err)
		}
	}
	if _, _, _, err := v.Codec.Decode(nil, runtime.ContentTypeProtobuf, resource.Strict); err == nil {
		t.Error("protobuf was decoded")
	}
	if object, _, _, err := v.Codec.Decode(
		[]byte("apiVersion: example.com/v1\nkind: Widget\n"), runtime.ContentTypeYAML, resource.Strict,
	); err != nil || object == nil {
		t.Errorf("YAML: %v", err)
	}
}

func TestVersionsConvert(t *testing.T) {
	d := define(t, sample(t))
	if len(d.Versions) != 2 || d.Versions[0].Name != "v1" || d.StorageVersion.Version != "v1" {
		t.Fatalf("versions %v", d.Versions)
	}
	beta := d.Version("v1beta1")
	object, _, _, err :=
		beta.Codec.Decode(
			[]byte(`{"apiVersion":"example.com/v1beta1","kind":"Widget","metadata":{"name":"a","resourceVersion":"7"},"spec":{"color":"red","extra":1}}`), runtime.ContentTypeJSON, resource.Strict,
		)
	if err != nil {
		t.Fatal(err)
	}
	stored, err := beta.Codec.Store(t.Context(), object)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"a","resourceVersion":"7"},"spec":{"color":"red"}}` + "\n"
	if string(stored) != want {
		t.Errorf("stored %s", stored)
	}
	if object.(*unstructured.Unstructured).GetResourceVersion() != "7" {
		t.Error("storing changed the object")
	}
	loaded, err := beta.Codec.LoadExternal(t.Context(), stored)
	if err != nil {
		t.Fatal(err)
	}
	u := loaded.(*unstructured.Unstructured)
	if u.GetAPIVersion() != "example.com/v1beta1" || u.GetGeneration() != 1 {
		t.Errorf("loaded %v", u.Object)
	}
	if got := specOf(t, u); got != `{"color":"red","replicas":1}` {
		t.Errorf("defaults of the stored version are missing: %s", got)
	}
	if beta.Deprecation != "example.com/v1beta1 Widget is deprecated; use example.com/v1 Widget" {
		t.Errorf("deprecation %q", beta.Deprecation)
	}
}

func TestStoredObjectsStayReadable(t *testing.T) {
	v := withSchema(t, `{"type":"object","properties":{"a":{"type":"string"}}}`)
	object, err := v.Codec.Load(t.Context(),
		[]byte(`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"a","labels":{"bad":1}},"spec":{"a":"x","gone":1}}`))
	if err != nil {
		t.Fatal(err)
	}
	if got := specOf(t, object); got != `{"a":"x"}` {
		t.Errorf("spec %s", got)
	}
}

// TestUnreadableStoredObjects reads stored objects that no release has written. A list ends before them.
func TestUnreadableStoredObjects(t *testing.T) {
	t.Parallel()
	v := define(t, sample(t)).Version("v1beta1")
	for name, test := range map[string]struct{ stored, want string }{
		"no JSON": {`{`, "decode stored custom resource: "},
		"metadata of another type": {`{"apiVersion":"example.com/v1","kind":"Widget","metadata":"text"}`,
			"stored custom resource: invalid metadata: expected object, got string"},
		"a version that the definition does not have": {`{"apiVersion":"example.com/v9","kind":"Widget"}`,
			"request to convert CR from an invalid group/version: example.com/v9"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := v.Codec.Load(t.Context(), []byte(test.stored))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("load: got %v, want %s", err, test.want)
			}
			objects, err := v.Codec.LoadAll(t.Context(), [][]byte{
				storedWidget("v1", "a"), storedWidget("v1beta1", "b"), []byte(test.stored), storedWidget("v1", "c"),
			})
			if names(objects) != "a b" || err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("load all: got %s, %v; want %s", names(objects), err, test.want)
			}
			for _, object := range objects {
				if got := object.(*unstructured.Unstructured).GetAPIVersion(); got != "example.com/v1beta1" {
					t.Errorf("loaded an object in %s", got)
				}
			}
		})
	}
}

// TestLargeDefaults: an object may be small without its defaults and too large to be stored with them. Requests with
// such an object fail.
func TestLargeDefaults(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("d", 1<<10)
	v := withSchema(t, `{"type":"object","properties":{"list":{"type":"array","items":{"type":"object",`+
		`"properties":{"a":{"type":"string","default":"`+long+`"}}}}}}`)
	objects := func(number int) []byte {
		return []byte(head + `{"list":[` + strings.TrimSuffix(strings.Repeat("{},", number), ",") + "]}}")
	}
	if _, _, _, err := v.Codec.Decode(objects(100), runtime.ContentTypeJSON, resource.Ignore); err != nil {
		t.Errorf("defaults within the limit: %v", err)
	}
	_, _, _, err := v.Codec.Decode(objects(10_000), runtime.ContentTypeJSON, resource.Ignore)
	if !apierrors.IsRequestEntityTooLargeError(err) {
		t.Errorf("defaults of 10 MiB: %v", err)
	}
	stored, err := v.Codec.Load(t.Context(), objects(10_000)) // stored before the schema had defaults
	if err != nil {
		t.Fatal(err)
	}
	if _, err := v.Codec.Store(t.Context(), stored); !apierrors.IsRequestEntityTooLargeError(err) {
		t.Errorf("store: %v", err)
	}
	if _, err := v.Codec.Load(t.Context(), objects(100_000)); err == nil ||
		!strings.Contains(err.Error(), "its defaults are larger than") {
		t.Errorf("stored object with defaults of 100 MiB: %v", err)
	}
}

// TestPatchedBodies decodes what a patch has made of an object. Unknown and duplicate fields are reported as in the
// body of a request.
func TestPatchedBodies(t *testing.T) {
	t.Parallel()
	v := withSchema(t, `{"type":"object","properties":{"a":{"type":"string"}}}`)
	object, strict, err := v.Codec.DecodePatched([]byte(head+`{"a":"x","b":1}}`), resource.Strict)
	if err != nil {
		t.Fatal(err)
	}
	if got := specOf(t, object); got != `{"a":"x"}` {
		t.Errorf("spec %s", got)
	}
	if len(strict) != 1 || strict[0].Error() != `unknown field "spec.b"` {
		t.Errorf("strict errors %v", strict)
	}
}

// TestInternalVersionIsTheServedVersion: the codec copies an object instead of converting it, so that a change of the
// copy does not change the original.
func TestInternalVersionIsTheServedVersion(t *testing.T) {
	t.Parallel()
	codec := withSchema(t, `{"type":"object"}`).Codec
	for name, convert := range map[string]func(runtime.Object) (runtime.Object, error){
		"External": codec.External, "Internal": codec.Internal,
	} {
		original := newWidget("w")
		converted, err := convert(original)
		if err != nil {
			t.Fatal(err)
		}
		if difference := cmp.Diff(original, converted); difference != "" {
			t.Errorf("%s: %s", name, difference)
		}
		converted.(*unstructured.Unstructured).SetName("changed")
		if original.GetName() != "w" {
			t.Errorf("%s shares the content of the original", name)
		}
		if _, err := convert(&corev1.Pod{}); err == nil || err.Error() != "*v1.Pod is not a custom resource" {
			t.Errorf("%s of a Pod: %v", name, err)
		}
	}
	if _, err := codec.Store(t.Context(), &corev1.Pod{}); err == nil {
		t.Error("a Pod was stored as a custom resource")
	}
}

// TestMissingSelectableFields: a field that an object does not have, or that is null, is selected by the empty string,
// and a number by its digits.
func TestMissingSelectableFields(t *testing.T) {
	t.Parallel()
	definition := sample(t)
	definition.Spec.Versions[0].SelectableFields = []apiextensionsv1.SelectableField{
		{JSONPath: ".spec.color"}, {JSONPath: ".spec.replicas"}, {JSONPath: ".spec.note"},
	}
	got, err := define(t, definition).Fields(widget(map[string]any{"replicas": int64(2), "note": nil}))
	if err != nil {
		t.Fatal(err)
	}
	want := fields.Set{
		"metadata.name": "w", "metadata.namespace": "default", "spec.color": "", "spec.replicas": "2", "spec.note": "",
	}
	if difference := cmp.Diff(want, got); difference != "" {
		t.Error(difference)
	}
	if _, err := define(t, sample(t)).Fields(&corev1.Pod{}); err == nil {
		t.Error("a Pod has the fields of a custom resource")
	}
}

func TestFieldSelectors(t *testing.T) {
	d := define(t, sample(t))
	set, err := d.Fields(newWidget("w"))
	if err != nil {
		t.Fatal(err)
	}
	if set["spec.color"] != "green" || set["metadata.name"] != "w" || set["metadata.namespace"] != "default" {
		t.Errorf("fields %v", set)
	}
	if _, _, err := d.Version("v1").FieldLabel("spec.color", "x"); err != nil {
		t.Error(err)
	}
	if _, _, err := d.Version("v1beta1").FieldLabel("spec.color", "x"); err == nil ||
		err.Error() != "field label not supported: spec.color" {
		t.Errorf("v1beta1 has no such field: %v", err)
	}
}

func TestTable(t *testing.T) {
	d := define(t, sample(t))
	table, err := d.Version("v1").Table.ConvertToTable(t.Context(), newWidget("w"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(table.ColumnDefinitions) != 2 || table.ColumnDefinitions[1].Name != "Color" {
		t.Errorf("columns %v", table.ColumnDefinitions)
	}
	if difference := cmp.Diff([]any{"w", "green"}, table.Rows[0].Cells); difference != "" {
		t.Error(difference)
	}
	if table, err := d.Version("v1beta1").Table.ConvertToTable(t.Context(), newWidget("w"), nil); err != nil ||
		table.ColumnDefinitions[1].Name != "Age" {
		t.Errorf("default columns %v %v", table, err)
	}
}

func TestScaleTable(t *testing.T) {
	v := define(t, sample(t)).Version("v1")
	scale, err := v.Endpoints["scale"].View.Get(newWidget("w"))
	if err != nil {
		t.Fatal(err)
	}
	table, err := v.Table.ConvertToTable(t.Context(), scale, nil)
	if err != nil {
		t.Fatal(err)
	}
	if difference := cmp.Diff([]any{"w", int64(2), int64(0)}, table.Rows[0].Cells[:3]); difference != "" {
		t.Error(difference)
	}
}

// FuzzDecode: decoding does not panic, and decoded objects are unchanged after being stored and loaded.
func FuzzDecode(f *testing.F) {
	d := define(f, sample(f))
	m := d.Version("v1").Codec
	for _, spec := range []string{
		`{}`, `{"color":null}`, `{"parts":[{"name":"a"},null]}`, `{"template":{"metadata":{"name":1}}}`, `[]`,
		`{"free":{"a":[1,1.5,"x",null]}}`,
	} {
		f.Add([]byte(head + spec + "}"))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		object, kind, _, err := m.Decode(body, runtime.ContentTypeJSON, resource.Warn)
		if err != nil || kind != d.Version("v1").Kind {
			return
		}
		object.(*unstructured.Unstructured).SetGeneration(1)
		object.(*unstructured.Unstructured).SetResourceVersion("")
		stored, err := m.Store(t.Context(), object)
		if err != nil {
			t.Fatalf("cannot store %q: %v", body, err)
		}
		loaded, err := m.Load(t.Context(), stored)
		if err != nil {
			t.Fatalf("cannot load %s: %v", stored, err)
		}
		again, err := m.Store(t.Context(), loaded)
		if err != nil {
			t.Fatal(err)
		}
		if string(stored) != string(again) {
			t.Errorf("stored %s\nthen   %s", stored, again)
		}
	})
}

// TestIdleMachineryIsDropped: what a definition has built from its schema is dropped when idle, and built again.
func TestIdleMachineryIsDropped(t *testing.T) {
	idle, now := &lazy.Set{}, clocktesting.NewFakeClock(time.Unix(0, 0))
	builder, err := crd.NewBuilder(idle, newConverters(t), clock.RealClock{})
	if err != nil {
		t.Fatal(err)
	}
	definition := sample(t)
	definition.Status = crd.Conditions(definition, crd.Claim(), true)
	built, err := builder.Definition(definition)
	if err != nil {
		t.Fatal(err)
	}
	go idle.Run(t.Context(), now, time.Minute)
	version := built.Version("v1")
	use := func() {
		object := newWidget("a")
		version.Codec.Default(object)
		if problems := version.Endpoints[""].Create.Validate(t.Context(), object); len(problems) > 0 {
			t.Error(problems)
		}
		if _, err := version.Endpoints[""].FieldManager(); err != nil {
			t.Error(err)
		}
	}
	if idle.Len() != 0 {
		t.Errorf("%d values exist before the first use", idle.Len())
	}
	for range 2 {
		if use(); idle.Len() == 0 {
			t.Error("no value exists")
		}
		eventually(t, "all values are dropped", func() bool {
			now.Step(time.Minute)
			return idle.Len() == 0
		})
	}
}

// TestUnsharedRows checks that rows with a column that may select by times are printed for each request, and others are
// not.
func TestUnsharedRows(t *testing.T) {
	for path, want := range map[string]bool{
		".spec.color": false,
		`.status.conditions[?(@.type=="Ready")].lastTransitionTime`: false,
		`.status.conditions[?( @.type == 'Ready' )].status`:         false,
		`.spec.list[?(@.a.b != "")].c`:                              false,
		`.spec.list[?(@.number==3)].at`:                             false,
		`.spec.list[?(@.on==true)].at`:                              false,
		`.spec.list[?(@.at<"2026-01-01T00:00:00Z")].at`:             true,
		`.spec.list[?(@.at=="2026-01-01T00:00:00Z")].at`:            true,
		`.spec.list[?(@.type=="Ready")].list[?(@.at>"z")].at`:       true,
		`.spec.list[?(@.a==@.b)].at`:                                true,
		`.spec.list[?(@.at)].at`:                                    true,
	} {
		crd := sample(t)
		crd.Spec.Versions[0].AdditionalPrinterColumns[0].JSONPath = path
		if got := define(t, crd).Version(crd.Spec.Versions[0].Name).UnsharedRows; got != want {
			t.Errorf("%s: rows are printed for each request: %v", path, got)
		}
	}
}
