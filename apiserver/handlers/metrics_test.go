package handlers

import (
	"testing"

	"k8s.io/apimachinery/pkg/fields"

	"quorate.dev/apiserver/registry"
	"quorate.dev/apiserver/resource"
)

func TestWatchScope(t *testing.T) {
	for _, test := range []struct {
		namespace, selector, want string
	}{
		{"", "", "cluster"}, {"a", "", "namespace"}, {"a", "metadata.name=x", "resource"}, {
			"", "metadata.namespace=a", "namespace",
		},
		{"", "metadata.name!=x", "cluster"}, {"", "metadata.name=", "cluster"}, {
			"", "metadata.namespace=a,metadata.name=x", "resource",
		},
	} {
		var selection registry.Selection
		if test.selector != "" {
			selection.Field = fields.ParseSelectorOrDie(test.selector)
		}
		if got := watchScope(resource.Target{Namespace: test.namespace}, selection); got != test.want {
			t.Errorf("%+v: %s", test, got)
		}
	}
}
