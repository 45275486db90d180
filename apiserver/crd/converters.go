package crd

import (
	"k8s.io/apiextensions-apiserver/pkg/apiserver/conversion"
	utilwebhook "k8s.io/apiserver/pkg/util/webhook"
)

// NewConverters returns the converters of definitions with conversion webhooks. The webhooks' Services are found by
// services, and wrap configures the clients.
func NewConverters(services utilwebhook.ServiceResolver, wrap utilwebhook.AuthenticationInfoResolverWrapper) (Converters, error) {
	return conversion.NewCRConverterFactory(services, wrap)
}
