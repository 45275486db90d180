package change

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// repeated returns JSON objects from a format with one number, joined by commas.
func repeated(format string, number int) string {
	items := make([]string, number)
	for i := range items {
		items[i] = fmt.Sprintf(format, i)
	}
	return strings.Join(items, ",")
}

func TestComparisons(t *testing.T) {
	schema, err := strategicpatch.NewPatchMetaFromStruct(&corev1.Pod{})
	if err != nil {
		t.Fatal(err)
	}
	containers := `{"spec":{"containers":[` + repeated(`{"name":"c%d"}`, 1000) + `]}}`
	environment := func(elements int) string { return `[` + repeated(`{"name":"e%d"}`, elements) + `]` }
	for _, test := range []struct {
		name, current, patch string
		want                 int
	}{
		{"empty", containers, `{}`, 0},
		{"no lists", containers, `{"metadata":{"labels":{"a":"b"}}}`, 0},
		{"one container of many", containers, `{"spec":{"containers":[{"name":"c5","image":"new"}]}}`, 1001},
		{"all containers", containers, containers, 2_000_000},
		{
			"a list that is replaced", `{}`, `{"spec":{"containers":[{"name":"a","args":[` + repeated(`"%d"`, 9000) + `]}]}}`, 1,
		},
		{"an unknown list", `{}`, `{"unknown":[` + repeated(`"%d"`, 9000) + `]}`, 0},
		{
			"the order of a list", containers,
			`{"spec":{"$setElementOrder/containers":[` + repeated(`{"name":"c%d"}`, 1000) + `]}}`, 2_000_000,
		},
		{
			"deletions", `{"metadata":{"finalizers":["a"]}}`, `{"metadata":{"$deleteFromPrimitiveList/finalizers":["a","b"]}}`,
			6,
		},
		{
			"a list inside an element", `{"spec":{"containers":[{"name":"a","env":` + environment(100) + `}]}}`,
			`{"spec":{"containers":[{"name":"a","env":` + environment(10) + `}]}}`, 2 + 10*110,
		},
		{
			"elements with the same name", `{}`,
			`{"spec":{"containers":[` + repeated(`{"name":"a","env":[{"name":"%d"},{"name":"b"}]}`, 2) + `]}}`, 4 + 2*4 + 16,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			var current, patch map[string]any
			if err := json.Unmarshal([]byte(test.current), &current); err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal([]byte(test.patch), &patch); err != nil {
				t.Fatal(err)
			}
			if got := comparisons(current, patch, schema); got != test.want {
				t.Errorf("%d comparisons, want %d", got, test.want)
			}
		})
	}
}
