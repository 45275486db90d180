package apiserver

import (
	"time"

	"quorate.dev/apiserver/admission"
	"quorate.dev/apiserver/admission/native"
	"quorate.dev/apiserver/admission/plugins"
	"quorate.dev/apiserver/builtin/certificates"
	"quorate.dev/apiserver/builtin/rbac"
	"quorate.dev/apiserver/discovery"
	"quorate.dev/apiserver/serviceresolver"
)

// maxReview bounds the bytes of a response of an admission webhook. It is large enough for a patch that contains,
// encoded in base64, an object of 3 MiB, the limit of a request.
const maxReview = 16 << 20

// maxConversion bounds the responses of conversion webhooks. A call has objects of a few MiB.
const maxConversion = 32 << 20

// webhookClients configures the clients of webhooks of a cluster, in which the Service default/kubernetes is this
// server.
func (s *cluster) webhookClients(maxResponse int64) serviceresolver.Clients {
	return serviceresolver.Clients{
		Local: s.loopback.config("", "apiserver").Transport, ControlPlane: s.egress.ControlPlane, Cluster: s.egress.Cluster,
		Trace: s.tracing.wrapper(), MaxResponse: maxResponse,
	}
}

// webhookClients configures the clients of webhooks of an extension server, for which the Service
// default/kubernetes is the host's.
func (s *extension) webhookClients(maxResponse int64) serviceresolver.Clients {
	return serviceresolver.Clients{
		ControlPlane: s.egress.ControlPlane, Cluster: s.egress.Cluster, Trace: s.tracing.wrapper(), MaxResponse: maxResponse,
	}
}

// composeAdmission composes the admission chain: kube-apiserver's plugins in its order, then the checks that
// kube-apiserver makes in its storage.
func (s *cluster) composeAdmission(chain *admission.Chain) error {
	made, err := plugins.New(s.pluginOptions())
	if err != nil {
		return err
	}
	chain.Metrics = admission.NewMetrics(s.metrics, s.clock)
	for _, plugin := range made {
		switch {
		case plugin.Upstream != nil:
			chain.Plugins = append(chain.Plugins, s.upstreamPlugin(plugin))
		case plugin.Name == plugins.NamespaceLifecycle:
			chain.Plugins = append(chain.Plugins, s.namespaceLifecycle(&native.NamespaceLifecycle{
				Get: native.StoredNamespace(s.objects),
			}))
		}
	}
	// As in kube-apiserver, the guard does not depend on the authorization modes.
	guard := rbac.Guard{Authorizer: s.auth.authorizer, Rules: s.auth.policy.Resolver()}
	chain.Plugins = append(chain.Plugins, native.EscalationCheck{Guard: guard}.Plugin())
	chain.Reservers = []admission.Reserver{
		native.ServiceAddresses{
			Allocator: s.services.allocator, Objects: s.objects, Logger: s.logger.WithName("services"),
		},
		native.CertificateRequests{Metrics: certificates.NewMetrics(s.metrics)},
	}
	return nil
}

// pluginOptions returns the options of the admission plugins of a cluster.
func (s *Server) pluginOptions() plugins.Options {
	c, webhooks := s.config.Admission, s.mode.webhookClients(maxReview)
	return plugins.Options{
		Selection:  plugins.Selection{Enable: c.Enable, Disable: c.Disable, Control: c.Control},
		ConfigFile: c.ConfigFile,
		Client:     s.client,
		Parameters: s.parameters,
		Dynamic:    s.dynamic,
		OpenAPI:    s.schemas.Client(),
		Services:   webhooks.Resolver(s.resolver),

		Authentication: webhooks.Wrap,

		Informers:  s.informers,
		Authorizer: s.auth.authorizer,
		Mapper:     discovery.NewMapper(s.catalog, s.background.documents),
		Serves:     s.apis.Serves,
		ServerID:   serverID(),
		Stopped:    s.stopped,
	}
}

// namespaceLifecycle sets the lister and the clock of lifecycle, and returns it as a plugin.
func (s *Server) namespaceLifecycle(lifecycle *native.NamespaceLifecycle) admission.Plugin {
	lifecycle.Namespaces, lifecycle.Clock = s.informers.Core().V1().Namespaces().Lister(), s.clock
	return lifecycle.Plugin()
}

// maxEvaluationCPU is the CPU time that a plugin may use for one object to evaluate the expressions of policies or
// webhooks. The limit of mutating webhooks is higher, because the goroutine that is measured also encodes the object
// for each webhook and applies the patches.
const (
	maxEvaluationCPU      = 2 * time.Second
	maxMutatingWebhookCPU = 10 * time.Second
)

// upstreamPlugin adapts a plugin of upstream. A plugin with policies or webhooks sees the writes that they may select.
func (s *Server) upstreamPlugin(plugin plugins.Plugin) admission.Plugin {
	if plugin.Rules != nil {
		return s.selectingPlugin(plugin, plugin.Rules)
	}
	return admission.Upstream(plugin.Name, plugin.Upstream, s.catalog)
}

// selectingPlugin adapts a plugin of upstream that has policies or webhooks: it sees the writes that rules may select,
// and its CPU time is limited.
func (s *Server) selectingPlugin(plugin plugins.Plugin, rules admission.Rules) admission.Plugin {
	limit := maxEvaluationCPU
	if plugin.Name == plugins.MutatingAdmissionWebhook {
		limit = maxMutatingWebhookCPU
	}
	return admission.Upstream(plugin.Name, plugin.Upstream, s.catalog).Selecting(rules, s.catalog).WithinCPU(limit)
}
