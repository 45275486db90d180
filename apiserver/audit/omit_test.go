package audit

import (
	"encoding/json"
	"testing"
)

func TestOmitManagedFields(t *testing.T) {
	for _, test := range []struct{ json, want string }{
		{
			`{"metadata":{"name":"a","managedFields":[{"x":"]}"}]},"spec":{}}` + "\n",
			`{"metadata":{"name":"a"},"spec":{}}` + "\n",
		},
		{`{"metadata":{"managedFields":[],"name":"a"}}`, `{"metadata":{"name":"a"}}`},
		{`{"metadata":{"managedFields":null}}`, `{"metadata":{}}`},
		{`{"metadata":{"a":1,"managedFields":[1],"z":"\"}"}}`, `{"metadata":{"a":1,"z":"\"}"}}`},
		{`{ "metadata" : { "a" : 1 , "managedFields" : [ ] } }`, `{ "metadata" : { "a" : 1 } }`},
		{
			`{"spec":{"metadata":{"managedFields":[1]}},"managedFields":2}`,
			`{"spec":{"metadata":{"managedFields":[1]}},"managedFields":2}`,
		},
		{
			`{"items":[{"metadata":{"a":1,"managedFields":[1]}},{"metadata":{"managedFields":[1]}}],"metadata":{"b":2}}`,
			`{"items":[{"metadata":{"a":1}},{"metadata":{}}],"metadata":{"b":2}}`,
		},
		{
			`{"kind":"Table","rows":[{"cells":["x"],"object":{"metadata":{"a":1,"managedFields":[1]}}},{"object":null}]}`,
			`{"kind":"Table","rows":[{"cells":["x"],"object":{"metadata":{"a":1}}},{"object":null}]}`,
		},
		{`{"items":null,"metadata":{}}`, `{"items":null,"metadata":{}}`},
		{`[]`, `[]`},
		{`"managedFields"`, `"managedFields"`},
		{``, ``},
		{`{"metadata":{"managedFields":[1]`, `{"metadata":{"managedFields":[1]`},
	} {
		if got := string(omitManagedFields([]byte(test.json))); got != test.want {
			t.Errorf("%s\ngot  %s\nwant %s", test.json, got, test.want)
		}
	}
}

// FuzzOmitManagedFields checks that valid JSON stays valid, that nothing panics, and that no managed fields remain.
func FuzzOmitManagedFields(f *testing.F) {
	f.Add(`{"metadata":{"name":"a","managedFields":[{"x":"]}"}]},"items":[{"metadata":{"managedFields":{}}}]}`)
	f.Add(`{"rows":[{"object":{"metadata":{"managedFields":1,"b":"\\\""}}}]`)
	f.Fuzz(func(t *testing.T, text string) {
		got := omitManagedFields([]byte(text))
		if !json.Valid([]byte(text)) {
			return
		}
		if !json.Valid(got) {
			t.Errorf("%q became %q", text, got)
		}
		if again := omitManagedFields(got); string(again) != string(got) {
			t.Errorf("%q became %q, then %q", text, got, again)
		}
	})
}
