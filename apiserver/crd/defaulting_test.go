package crd

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	structuraldefaulting "k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apimachinery/pkg/runtime"
)

// elements is the schema of a list of objects with fifty defaults each.
func elements() *structuralschema.Structural {
	item := structuralschema.Structural{Properties: map[string]structuralschema.Structural{}}
	for i := range 50 {
		value := structuralschema.Structural{}
		value.Default.Object = "a default value"
		item.Properties[fmt.Sprint("field-", i)] = value
	}
	list := structuralschema.Structural{Items: &item}
	return &structuralschema.Structural{Properties: map[string]structuralschema.Structural{"list": list}}
}

// emptyElements returns an object with a list of empty objects.
func emptyElements(number int) map[string]any {
	list := make([]any, number)
	for i := range list {
		list[i] = map[string]any{}
	}
	return map[string]any{"list": list}
}

// TestDefaultsAreBounded sets the defaults of 50,000 objects, which would be 60 MB.
func TestDefaultsAreBounded(t *testing.T) {
	object := emptyElements(50_000)
	d := &defaulter{budget: maxAdded}
	d.apply(object, elements())
	encoded, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	// Store refuses what is larger than maxObject, so that an object that lacks defaults is never stored.
	if !d.exceeded() || len(encoded) <= maxObject || len(encoded) > 2*maxObject {
		t.Errorf("%d bytes, exceeded is %v", len(encoded), d.exceeded())
	}
}

// TestDefaultsAreUpstreams compares the defaults of objects within the limit with upstream's.
func TestDefaultsAreUpstreams(t *testing.T) {
	nullable := structuralschema.Structural{}
	nullable.Nullable, nullable.Default.Object = true, "nullable"
	additional := structuralschema.Structural{}
	additional.Default.Object = map[string]any{"inner": int64(5), "more": []any{true, nil, 1.5}}
	nested := elements()
	nested.Default.Object = map[string]any{"list": []any{map[string]any{}}}
	schema := elements()
	schema.Properties["nullable"] = nullable
	schema.Properties["nested"] = *nested
	schema.Properties["map"] = structuralschema.Structural{
		AdditionalProperties: &structuralschema.StructuralOrBool{Structural: &additional},
	}
	for _, text := range []string{
		`{}`, `{"list":[{},{"field-1":"set"},{"field-2":null},null]}`, `{"nullable":null}`, `{"nested":null}`,
		`{"nested":{"list":[{}]}}`, `{"map":{"a":null,"b":{},"c":1}}`, `{"list":"no list","map":[]}`,
	} {
		var got, want map[string]any
		if err := json.Unmarshal([]byte(text), &want); err != nil {
			t.Fatal(err)
		}
		got = runtime.DeepCopyJSON(want)
		d := &defaulter{budget: maxAdded}
		d.apply(got, schema)
		structuraldefaulting.Default(want, schema)
		if diff := cmp.Diff(want, got); diff != "" || d.exceeded() {
			t.Errorf("%s (-want +got):\n%s", text, diff)
		}
		// The budget counts no more than what is added, so that it refuses nothing that fits.
		if encoded, err := json.Marshal(got); err != nil || maxAdded-d.budget > len(encoded) {
			t.Errorf("%s: %d bytes are counted, %d added, %v", text, maxAdded-d.budget, len(encoded), err)
		}
	}
}
