package reduction

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestRemoveEnumerations removes enumerations in all keywords that contain schemas, and keeps a property named enum and
// the enumerations of parameters.
func TestRemoveEnumerations(t *testing.T) {
	t.Parallel()
	const schemas = `{
		"Phase": {"type": "string", "enum": ["A"], "description": "Possible enum values:\n - A"},
		"Props": {"properties": {
			"enum": {"type": "array", "items": {"type": "string", "enum": ["A"]}},
			"phase": {"enum": ["A"], "description": "The phase.\n\nPossible enum values:\n - A", "default": ""},
			"map": {"additionalProperties": {"enum": ["A"]}},
			"any": {"anyOf": [{"enum": ["A"]}], "oneOf": [{"enum": ["A"]}], "allOf": [{"$ref": "#"}, {"enum": ["A"]}]},
			"not": {"not": {"enum": ["A"]}, "additionalProperties": true}
		}}
	}`
	const want = `{
		"Phase": {"type": "string"},
		"Props": {"properties": {
			"enum": {"type": "array", "items": {"type": "string"}},
			"phase": {"description": "The phase.", "default": ""},
			"map": {"additionalProperties": {}},
			"any": {"anyOf": [{}], "oneOf": [{}], "allOf": [{"$ref": "#"}, {}]},
			"not": {"not": {}, "additionalProperties": true}
		}}
	}`
	const paths = `{"/a": {"parameters": [{"name": "p", "enum": ["A"]}]}}`
	for _, test := range []struct {
		name, document, want string
		remove               func(Object)
	}{
		{"version 2", `{"definitions": ` + schemas, `{"definitions": ` + want, RemoveEnumerationsV2},
		{"version 3", `{"components": {"schemas": ` + schemas + `}`, `{"components": {"schemas": ` + want + `}`,
			RemoveEnumerationsV3},
	} {
		var got, expected Object
		for text, into := range map[string]*Object{test.document: &got, test.want: &expected} {
			if err := json.Unmarshal([]byte(text+`, "paths": `+paths+`}`), into); err != nil {
				t.Fatal(err)
			}
		}
		test.remove(got)
		if diff := cmp.Diff(expected, got); diff != "" {
			t.Errorf("%s: (- want, + got)\n%s", test.name, diff)
		}
	}
}
