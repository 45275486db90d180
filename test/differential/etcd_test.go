package differential

import (
	"slices"
	"testing"
)

func TestMergeRetries(t *testing.T) {
	for _, c := range []struct{ writes, want []string }{
		{[]string{"a", deleted}, []string{"a", deleted}},
		{[]string{"a", deleted, "a", deleted}, []string{"a", deleted}},
		{[]string{"a", deleted, "a", deleted, "a"}, []string{"a"}},
		{[]string{"a", deleted, "b", deleted}, []string{"a", deleted, "b", deleted}},
		{[]string{"a", "a"}, []string{"a", "a"}},
	} {
		if got := mergeRetries(c.writes); !slices.Equal(got, c.want) {
			t.Errorf("%q: got %q, want %q", c.writes, got, c.want)
		}
	}
}
