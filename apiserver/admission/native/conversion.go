package native

import (
	"context"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apiserver/pkg/warning"

	"quorate.dev/apiserver/admission"
	"quorate.dev/apiserver/crd"
)

const notConverted = "this server does not call conversion webhooks yet: objects cannot be converted between versions"

// ConversionWarning warns clients that create or change a CustomResourceDefinition with a conversion webhook.
type ConversionWarning struct{}

// Plugin returns the warning's place in the order of admission.
func (w ConversionWarning) Plugin() admission.Plugin {
	return admission.Plugin{Operations: []admission.Operation{admission.Create, admission.Update}, Validator: w}
}

// Validate implements admission.Validator. It refuses nothing.
func (ConversionWarning) Validate(ctx context.Context, a *admission.Attributes) error {
	definition, ok := a.Object.(*apiextensions.CustomResourceDefinition)
	if ok && a.Subresource == "" && crd.NeedsConversionWebhook(&definition.Spec) {
		warning.AddWarning(ctx, "", notConverted)
	}
	return nil
}
