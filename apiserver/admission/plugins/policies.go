package plugins

import (
	"context"

	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	mutatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	validatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/openapi"
	"k8s.io/kubernetes/pkg/kubeapiserver/admission/exclusion"
)

// policies initializes the plugins of policies and webhooks with the resources that they never see and, for policies,
// the informers of parameters and the schemas.
type policies struct{ options Options }

// Initialize implements admission.PluginInitializer.
func (p policies) Initialize(plugin admission.Interface) {
	if wants, ok := plugin.(initializer.WantsExcludedAdmissionResources); ok {
		wants.SetExcludedAdmissionResources(exclusion.Excluded())
	}
	switch plugin := plugin.(type) {
	case *mutatingpolicy.Plugin:
		plugin.SetExternalKubeInformerFactory(p.options.Parameters)
		plugin.SetExternalKubeClientSet(schemaClient{p.options.Client, p.options.OpenAPI})
	case *validatingpolicy.Plugin:
		plugin.SetExternalKubeInformerFactory(p.options.Parameters)
	}
}

// schemaClient is a kubernetes.Interface with another OpenAPI client, from which upstream's type converters fetch
// schemas periodically.
type schemaClient struct {
	kubernetes.Interface
	schemas openapi.Client
}

// Discovery implements kubernetes.Interface.
func (c schemaClient) Discovery() discovery.DiscoveryInterfaces {
	return schemaDiscovery{c.Interface.Discovery(), c.schemas}
}

type schemaDiscovery struct {
	discovery.DiscoveryInterfaces
	schemas openapi.Client
}

// OpenAPIV3 implements discovery.OpenAPIV3SchemaInterface.
func (d schemaDiscovery) OpenAPIV3() openapi.Client { return d.schemas }

// OpenAPIV3WithContext implements discovery.OpenAPIV3SchemaInterfaceWithContext.
func (d schemaDiscovery) OpenAPIV3WithContext(context.Context) openapi.ClientWithContext {
	return openapi.ToClientWithContext(d.schemas)
}
