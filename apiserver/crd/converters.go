package crd

import (
	"k8s.io/apiextensions-apiserver/pkg/apiserver/conversion"
	utilwebhook "k8s.io/apiserver/pkg/util/webhook"
)

// NewConverters returns the converters of definitions with conversion webhooks. services resolves the webhooks'
// Services, and wrap configures the clients, for example the limit of responses. It starts nothing and calls no
// webhook.
func NewConverters(
	services utilwebhook.ServiceResolver, wrap utilwebhook.AuthenticationInfoResolverWrapper,
) (Converters, error) {
	return conversion.NewCRConverterFactory(services, wrap)
}
