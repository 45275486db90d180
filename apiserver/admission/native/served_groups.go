package native

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	upstream "k8s.io/apiserver/pkg/admission"

	"quorate.dev/apiserver/admission"
)

// ServedGroups rejects CustomResourceDefinitions of API groups that the server does not serve: they could never be
// established.
type ServedGroups struct{ Groups []string }

// Plugin returns the entry for the order of admission.
func (g ServedGroups) Plugin() admission.Plugin {
	return admission.Plugin{Operations: []admission.Operation{admission.Create}, Validator: g}
}

// Validate implements admission.Validator.
func (g ServedGroups) Validate(_ context.Context, a *admission.Attributes) error {
	definition, ok := a.Object.(*apiextensions.CustomResourceDefinition)
	if !ok || slices.Contains(g.Groups, definition.Spec.Group) {
		return nil
	}
	return upstream.NewForbidden(a, fmt.Errorf("this server serves the API groups %s only", strings.Join(g.Groups, ", ")))
}
