package plugins

import (
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	quota "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/apiserver/pkg/quota/v1/generic"
	"k8s.io/kubernetes/pkg/quota/v1/evaluator/core"
	"k8s.io/kubernetes/pkg/quota/v1/install"
)

// quotas passes the quota configuration to the plugin ResourceQuota.
type quotas struct{ configuration quota.Configuration }

// newQuotas returns a configuration with the evaluators of all resources that are served.
func newQuotas(options Options) (quotas, error) {
	evaluators, err := core.NewEvaluators(nil, options.Informers, options.Serves)
	return quotas{generic.NewConfiguration(evaluators, install.DefaultIgnoredResources())}, err
}

// Initialize implements admission.PluginInitializer.
func (q quotas) Initialize(plugin admission.Interface) {
	if wants, ok := plugin.(initializer.WantsQuotaConfiguration); ok {
		wants.SetQuotaConfiguration(q.configuration)
	}
}
