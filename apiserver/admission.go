package apiserver

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/util/webhook"

	"quorate.dev/apiserver/admission"
	"quorate.dev/apiserver/admission/native"
	"quorate.dev/apiserver/admission/plugins"
	"quorate.dev/apiserver/builtin/certificates"
	"quorate.dev/apiserver/builtin/rbac"
	"quorate.dev/apiserver/discovery"
	"quorate.dev/apiserver/serviceresolver"
)

// maxReview bounds the responses of admission webhooks. An object of 3 MiB, the limit of a request, fits into a patch, which
// is encoded in base64.
const maxReview = 16 << 20

// maxConversion bounds the responses of conversion webhooks. A call has objects of a few MiB.
const maxConversion = 64 << 20

// webhookClients configures the clients of a cluster's webhooks: the Service default/kubernetes is this server.
func (s *Server) webhookClients(maxResponse int64) webhook.AuthenticationInfoResolverWrapper {
	return serviceresolver.Clients{
		Local: s.local("").Transport, ControlPlane: s.egress.ControlPlane, Cluster: s.egress.Cluster,
		Trace: s.tracing.wrapper(), MaxResponse: maxResponse,
	}.Wrap
}

// hostWebhookClients configures the clients of webhooks in extension mode: the Service default/kubernetes is the host's.
func (s *Server) hostWebhookClients(maxResponse int64) webhook.AuthenticationInfoResolverWrapper {
	return serviceresolver.Clients{
		ControlPlane: s.egress.ControlPlane, Cluster: s.egress.Cluster, Trace: s.tracing.wrapper(), MaxResponse: maxResponse,
	}.Wrap
}

// composeAdmission sets up the chain: kube-apiserver's plugins in its order, then the checks that are part of storage
// in kube-apiserver.
func (s *Server) composeAdmission(chain *admission.Chain) error {
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
			chain.Plugins = append(chain.Plugins, s.namespaceLifecycle(native.StoredNamespace(s.registry.Client())))
		}
	}
	// As in kube-apiserver, whatever the authorization modes are.
	guard := rbac.Guard{Authorizer: s.auth.authorizer, Rules: s.auth.policy.Resolver()}
	chain.Plugins = append(chain.Plugins, native.EscalationCheck{Guard: guard}.Plugin())
	chain.Reservers = []admission.Reserver{
		native.ServiceAddresses{
			Allocator: s.services.allocator, Objects: s.registry.Client(), Logger: s.logger.WithName("services"),
		},
		native.CertificateRequests{Metrics: certificates.NewMetrics(s.metrics)},
	}
	return nil
}

// pluginOptions are those of all plugins of a cluster.
func (s *Server) pluginOptions() plugins.Options {
	c := s.config.Admission
	return plugins.Options{
		Selection:  plugins.Selection{Enable: c.Enable, Disable: c.Disable, Control: c.Control},
		ConfigFile: c.ConfigFile,
		Client:     s.client,
		Parameters: s.parameters,
		Dynamic:    s.dynamic,
		OpenAPI:    s.schemas.Client(),
		Services:   s.resolver,

		Authentication: s.mode.webhookClients(maxReview),

		Informers:  s.informers,
		Authorizer: s.auth.authorizer,
		Mapper:     discovery.NewMapper(s.catalogs.holder, s.aggregation.source()),
		Serves:     s.apis.Serves,
		Stopped:    s.stopped,
	}
}

// namespaceLifecycle returns the plugin with a function that reads a stored namespace.
func (s *Server) namespaceLifecycle(get func(context.Context, string) (metav1.Object, error)) admission.Plugin {
	lifecycle := &native.NamespaceLifecycle{
		Namespaces: s.informers.Core().V1().Namespaces().Lister(), Get: get, Clock: s.clock,
	}
	return lifecycle.Plugin()
}

func (s *Server) upstreamPlugin(plugin plugins.Plugin) admission.Plugin {
	made := admission.Upstream(plugin.Name, plugin.Upstream, s.catalogs.holder)
	if plugin.Rules != nil {
		made = made.Selecting(plugin.Rules, s.catalogs.holder)
	}
	return made
}
