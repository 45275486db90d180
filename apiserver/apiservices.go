package apiserver

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"quorate.dev/apiserver/controllers/autoregister"
	"quorate.dev/apiserver/crd"
)

// composeAPIServices returns the controller of the APIService objects of all groups and versions that are served.
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
			return s.registry.Client().Follow(ctx, autoregister.Resource, func(name string, object runtime.Object) {
				s.aggregation.observe(name, object)
				s.excludeAPIService(name, object)
				handle(name, object)
			}, func() {
				s.aggregation.known()
				synced()
			})
		},
	})
}

// followDefinitions delivers CustomResourceDefinitions to both controllers that need them.
func (s *Server) followDefinitions(
	ctx context.Context, name schema.GroupResource, handle func(key string, object runtime.Object), synced func(),
) error {
	return s.registry.Client().FollowWithProgress(ctx, name, &s.definitionsSeen, func(key string, object runtime.Object) {
		s.apiServices.SetDefinition(key, object)
		s.excludeDefinition(key, object)
		handle(key, object)
	}, func() {
		s.apiServices.DefinitionsKnown()
		synced()
	})
}

// followOwnDefinitions delivers CustomResourceDefinitions to the controller that serves them.
func (s *Server) followOwnDefinitions(
	ctx context.Context, name schema.GroupResource, handle func(key string, object runtime.Object), synced func(),
) error {
	return s.registry.Client().FollowWithProgress(ctx, name, &s.definitionsSeen, handle, synced)
}

// awaitFollowed returns when the mode's follow has delivered every change that was stored before the call.
func (s *Server) awaitFollowed(ctx context.Context) error {
	return s.registry.Client().AwaitFollowed(ctx, crd.Resource, &s.definitionsSeen)
}

// definitionsKnown returns a channel that is closed when all definitions that existed at the start are in the catalog.
// It is closed from the start when --runtime-config disables CustomResourceDefinitions.
func (s *Server) definitionsKnown() closedCheck {
	if _, served := s.catalogs.holder.Current().Find(crd.Resource); served {
		return s.custom.Synced()
	}
	known := make(chan struct{})
	close(known)
	return known
}
