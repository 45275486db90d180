package apiserver

import (
	"cmp"

	"k8s.io/apimachinery/pkg/runtime"

	"quorate.dev/apiserver/builtin"
	"quorate.dev/apiserver/controllers/autoregister"
	"quorate.dev/apiserver/flowcontrol"
	"quorate.dev/apiserver/peers"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/router"
	"quorate.dev/apiserver/serving"
	"quorate.dev/apiserver/startup"
)

// cluster is the API server of a cluster.
type cluster struct {
	*Server
	// configuration is the authentication and authorization configuration that was read at the start.
	configuration authConfiguration
	services      *services
	apiServices   *autoregister.Controller
	aggregation   aggregation
	// flows is nil if the limits of requests in flight apply.
	flows *flowcontrol.Controller
	// publisher is nil if the feature gate of peers is disabled.
	publisher *peers.Publisher
	// peers is nil if requests are not forwarded to other replicas.
	peers *peers.Peers
}

func (s *cluster) guard(next router.ResourceHandler) router.ResourceHandler { return next }

// composeBackground composes the controllers of Services and APIServices, priority and fairness, and the proxies to
// other replicas and to extension API servers.
func (s *cluster) composeBackground() (b background, err error) {
	if s.services, err = s.composeServices(); err != nil {
		return b, err
	}
	if err = s.composePeers(); err != nil {
		return b, err
	}
	s.apiServices = s.composeAPIServices()
	s.flows = s.composeFairness()
	if s.aggregation, err = s.composeAggregation(); err != nil {
		return b, err
	}
	completed := serving.Check{Name: "autoregister-completion", StartUp: true, Run: s.apiServices.Completed}
	return background{
		flows: s.flows, peers: s.peers, documents: s.aggregation.documents, forward: s.aggregation.forward,
		delegate: s.aggregation.proxy.Route, known: []startup.Signal{s.apiServices.Known()},
		checks: map[string]serving.Check{hookAutoregistration: completed}, addresses: s.addresses(), hosts: s.hosts(),
	}, nil
}

// definitions returns all built-in resources.
func (s *cluster) definitions() ([]*resource.Definition, error) {
	kubelets, err := s.composeKubelets()
	if err != nil {
		return nil, err
	}
	options := builtin.Options{
		APIs: s.apis, Objects: s.objects, Catalog: s.catalog, Clock: s.clock, EventTTL: s.config.Etcd.EventTTL,
		StorageMediaType: s.storageMediaType(),
		Audiences:        s.config.Authentication.Audiences(), Authorizer: s.auth.authorizer, Rules: s.auth.authorizer,
		ServiceAccountToken: s.auth.tokens.Request(s.auth.authorizer), Kubelets: kubelets, Etcd: s.stores.EndpointChecks(),
		ServiceFamily: s.serviceFamily(),
	}
	if tokens := s.auth.authenticator.Tokens(); tokens != nil {
		options.Tokens = tokens
	}
	return builtin.Definitions(options), nil
}

// storageMediaType returns the media type of stored built-in objects. As in kube-apiserver, an empty flag means JSON.
func (s *cluster) storageMediaType() string {
	return cmp.Or(s.config.Etcd.StorageMediaType, runtime.ContentTypeJSON)
}
