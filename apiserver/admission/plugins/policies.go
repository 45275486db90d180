package plugins

import (
	"k8s.io/apiserver/pkg/admission"
	mutatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	validatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/openapi"
	"k8s.io/kubernetes/pkg/kubeapiserver/admission/exclusion"
)

// policies initializes the plugins of policies with the resources that policies never evaluate, the informers of
// parameters, and the schemas.
type policies struct{ options Options }

// Initialize implements admission.PluginInitializer.
func (p policies) Initialize(plugin admission.Interface) {
	switch plugin := plugin.(type) {
	case *mutatingpolicy.Plugin:
		plugin.SetExcludedAdmissionResources(exclusion.Excluded())
		plugin.SetExternalKubeInformerFactory(p.options.Parameters)
		plugin.SetExternalKubeClientSet(schemaClient{p.options.Client, p.options.OpenAPI})
	case *validatingpolicy.Plugin:
		plugin.SetExcludedAdmissionResources(exclusion.Excluded())
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
func (c schemaClient) Discovery() discovery.DiscoveryInterface {
	return schemaDiscovery{c.Interface.Discovery(), c.schemas}
}

type schemaDiscovery struct {
	discovery.DiscoveryInterface
	schemas openapi.Client
}

// OpenAPIV3 implements discovery.OpenAPIV3SchemaInterface.
func (d schemaDiscovery) OpenAPIV3() openapi.Client { return d.schemas }
