package openapi

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

func TestAppendValue(t *testing.T) {
	value := object{
		"text": "a \"quoted\" \\ <tag> \u00e9 \n", "plain": "text", "é": true, "no": false, "none": object{}, "null": nil,
		"list": []string{"a", "b"}, "objects": []object{{"a": "b"}, {}}, "any": []any{"a", 1.5, nil, object{"x": 1}},
		"raw": json.RawMessage(`{"a":[1]}`), "schema": spec.StringProperty().WithDescription("d"), "empty": []object{},
	}
	encoded, err := appendValue(nil, value)
	if err != nil {
		t.Fatal(err)
	}
	marshalled, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	var got, want any
	if err := json.Unmarshal(encoded, &got); err != nil {
		t.Fatalf("%v: %s", err, encoded)
	}
	if err := json.Unmarshal(marshalled, &want); err != nil {
		t.Fatal(err)
	}
	if difference := cmp.Diff(want, got); difference != "" {
		t.Errorf("(-json.Marshal +got):\n%s", difference)
	}
}
