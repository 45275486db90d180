package apiserver

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"quorate.dev/apiserver/controllers/autoregister"
	"quorate.dev/apiserver/crd"
	"quorate.dev/apiserver/serving"
)

// composeAPIServices makes what keeps the APIService objects of what is served here.
func (s *Server) composeAPIServices() *autoregister.Controller {
	var builtin []schema.GroupVersion
	for _, d := range s.catalogs.builtin {
		for _, version := range d.Versions {
			builtin = append(builtin, schema.GroupVersion{Group: d.Group, Version: version.Name})
		}
	}
	return autoregister.New(autoregister.Options{
		Objects: s.registry.Client(), BuiltIn: builtin, Clock: s.clock, Logger: s.logger.WithName("autoregister"),
		Follow: func(ctx context.Context, handle func(name string, object runtime.Object), synced func()) error {
			return s.registry.Client().Follow(ctx, autoregister.Resource, handle, synced)
		},
	})
}

// followDefinitions has those who need to know of CustomResourceDefinitions share one reading of them.
func (s *Server) followDefinitions(ctx context.Context, name schema.GroupResource, handle func(key string, object runtime.Object), synced func()) error {
	return s.registry.Client().Follow(ctx, name, func(key string, object runtime.Object) {
		s.apiServices.SetDefinition(key, object)
		handle(key, object)
	}, func() {
		s.apiServices.DefinitionsKnown()
		synced()
	})
}

// definitionsKnown returns a channel that is closed once all definitions that existed at the start are in the catalog,
// or at once where --runtime-config switched them off.
func (s *Server) definitionsKnown() closedCheck {
	if _, served := s.catalogs.publisher.Current().Find(crd.Resource); served {
		return s.custom.Synced()
	}
	known := make(chan struct{})
	close(known)
	return known
}

// runCustom serves custom resources until ctx ends. Where --runtime-config switched their definitions off there is nothing
// to serve, and nothing to wait for; /readyz says so, as kube-apiserver's does.
func (s *Server) runCustom(ctx context.Context) error {
	if _, served := s.catalogs.publisher.Current().Find(crd.Resource); !served {
		s.apiServices.DefinitionsKnown()
		return nil
	}
	return s.custom.Run(ctx)
}

// addAPIServiceChecks adds how far the APIService objects are, under kube-apiserver's names.
func (s *Server) addAPIServiceChecks() {
	add := func(name string, run func(context.Context) error) {
		s.health.Add(serving.AllEndpoints, serving.Check{Name: name, Run: run, StartUp: true})
	}
	add("poststarthook/start-kube-aggregator-informers", closedCheck(s.apiServices.Known()).check)
	add("poststarthook/apiservice-status-local-available-controller", closedCheck(s.apiServices.Began()).check)
	add("poststarthook/kube-apiserver-autoregistration", closedCheck(s.apiServices.Began()).check)
	add("autoregister-completion", s.apiServices.Completed)
}
