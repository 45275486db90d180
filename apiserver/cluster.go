package apiserver

import (
	"context"
	"net/http"

	"quorate.dev/apiserver/builtin"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/router"
	"quorate.dev/apiserver/serving"
)

// cluster returns the parts of the API server of a cluster.
func (s *Server) cluster() mode {
	return mode{
		clients:     s.composeInformers,
		auth:        func(context.Context) (*auth, error) { return s.composeAuth() },
		definitions: s.definitions,
		serves:      func(string) bool { return true },
		follow:      s.followDefinitions,
		background:  s.composeBackground,
		admission:   s.composeAdmission,
		routes:      func(r *router.Router, _ http.Handler) { s.publishKeys(r) },
		addresses:   s.discoveryAddresses,
		hosts:       s.hosts,
		startUp:     s.startUp,
		synced:      s.checkSynced,
		checks: func() {
			completed := serving.Check{Name: "autoregister-completion", Run: s.apiServices.Completed, StartUp: true}
			s.health.Add(serving.AllEndpoints, completed)
		},
	}
}

// composeBackground composes the controllers of Services and APIServices.
func (s *Server) composeBackground() (err error) {
	s.services, err = s.composeServices()
	s.apiServices = s.composeAPIServices()
	return err
}

// definitions returns all built-in resources.
func (s *Server) definitions(holder *resource.CatalogHolder) ([]*resource.Definition, error) {
	kubelets, err := s.composeKubelets()
	if err != nil {
		return nil, err
	}
	options := builtin.Options{
		APIs: s.apis, Objects: s.registry.Client(), Catalog: holder, Clock: s.clock, EventTTL: s.config.Etcd.EventTTL,
		Audiences: s.config.Authentication.Audiences(), Authorizer: s.auth.authorizer, Rules: s.auth.authorizer,
		ServiceAccountToken: s.auth.tokens.Request(), Kubelets: kubelets, Etcd: s.backend.members(),
		ServiceFamily: s.serviceFamily(),
	}
	if tokens := s.auth.authenticator.Tokens(); tokens != nil {
		options.Tokens = tokens
	}
	return builtin.Definitions(options), nil
}
