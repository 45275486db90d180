package apiserver

import (
	"cmp"
	"context"

	"k8s.io/apimachinery/pkg/runtime"

	"quorate.dev/apiserver/builtin"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/router"
	"quorate.dev/apiserver/serving"
)

// cluster returns the parts of the API server of a cluster.
func (s *Server) cluster() mode {
	return mode{
		name:           "kube-apiserver",
		clients:        s.composeInformers,
		webhookClients: s.webhookClients,
		auth:           s.composeAuth,
		definitions:    s.definitions,
		serves:         func(string) bool { return true },
		follow:         s.followDefinitions,
		known:          func() []<-chan struct{} { return []<-chan struct{}{s.definitionsKnown(), s.apiServices.Known()} },
		background:     s.composeBackground,
		admission:      s.composeAdmission,
		guard:          func(next router.ResourceHandler) router.ResourceHandler { return next },
		routes:         s.publishKeys,
		addresses:      s.discoveryAddresses,
		hosts:          s.hosts,
		startUp:        s.startUp,
		synced:         s.checkSynced,
		checks: map[string]serving.Check{hookAutoregistration: {
			Name: "autoregister-completion", StartUp: true,
			Run: func(ctx context.Context) error { return s.apiServices.Completed(ctx) },
		}},
	}
}

// composeBackground composes the controllers of Services and APIServices, and the proxies to other replicas and to
// extension API servers.
func (s *Server) composeBackground() (err error) {
	if s.services, err = s.composeServices(); err != nil {
		return err
	}
	if err = s.composePeers(); err != nil {
		return err
	}
	s.apiServices = s.composeAPIServices()
	s.composeFairness()
	return s.composeAggregation()
}

// definitions returns all built-in resources.
func (s *Server) definitions(holder *resource.CatalogHolder) ([]*resource.Definition, error) {
	kubelets, err := s.composeKubelets()
	if err != nil {
		return nil, err
	}
	options := builtin.Options{
		APIs: s.apis, Objects: s.registry.Client(), Catalog: holder, Clock: s.clock, EventTTL: s.config.Etcd.EventTTL,
		StorageMediaType: s.storageMediaType(),
		Audiences:        s.config.Authentication.Audiences(), Authorizer: s.auth.authorizer, Rules: s.auth.authorizer,
		ServiceAccountToken: s.auth.tokens.Request(), Kubelets: kubelets, Etcd: s.etcdMembers(),
		ServiceFamily: s.serviceFamily(),
	}
	if tokens := s.auth.authenticator.Tokens(); tokens != nil {
		options.Tokens = tokens
	}
	return builtin.Definitions(options), nil
}

// storageMediaType returns the media type of stored built-in objects. As in kube-apiserver, an empty one is JSON.
func (s *Server) storageMediaType() string {
	return cmp.Or(s.config.Etcd.StorageMediaType, runtime.ContentTypeJSON)
}
