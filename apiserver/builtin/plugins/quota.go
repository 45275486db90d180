package plugins

import (
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	quota "k8s.io/apiserver/pkg/quota/v1"
)

// quotas gives the configuration of quota to the plugin that wants it.
type quotas struct{ configuration quota.Configuration }

// Initialize implements admission.PluginInitializer.
func (q quotas) Initialize(plugin admission.Interface) {
	if wants, ok := plugin.(initializer.WantsQuotaConfiguration); ok {
		wants.SetQuotaConfiguration(q.configuration)
	}
}
