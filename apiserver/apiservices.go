package apiserver

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"quorate.dev/apiserver/controllers/autoregister"
	"quorate.dev/apiserver/registry/follow"
	"quorate.dev/apiserver/resource"
)

// composeAPIServices returns the controller of the APIService objects of all served groups and versions.
func (s *cluster) composeAPIServices() *autoregister.Controller {
	var builtin []schema.GroupVersion
	for _, d := range s.catalogs.builtin {
		for _, version := range d.Versions {
			builtin = append(builtin, schema.GroupVersion{Group: d.Group, Version: version.Name})
		}
	}
	return autoregister.New(autoregister.Options{
		Objects: s.objects.Named("apiservice-registration"), BuiltIn: builtin, Clock: s.clock,
		Logger: s.logger.WithName("autoregister"),
		Follow: func(ctx context.Context, handle func(name string, object runtime.Object), synced func()) error {
			return s.objects.Follow(ctx, resource.Key{GroupResource: autoregister.Resource}, follow.Options{
				Objects: func(name string, object runtime.Object) {
					s.aggregation.observe(name, object)
					s.excludeAPIService(name, object)
					handle(name, object)
				},
				Synced: func() {
					s.aggregation.known()
					synced()
				},
			})
		},
	})
}

// followDefinitions passes CustomResourceDefinitions to the controllers of custom resources, APIServices and peers.
func (s *cluster) followDefinitions(
	ctx context.Context, name schema.GroupResource, handle func(key string, object runtime.Object), synced func(),
) error {
	return s.objects.Follow(ctx, resource.Key{GroupResource: name}, follow.Options{
		Objects: func(key string, object runtime.Object) {
			s.apiServices.SetDefinition(key, object)
			s.excludeDefinition(key, object)
			handle(key, object)
		},
		Undecodable: s.apiServices.SetUndecodable,
		Synced: func() {
			s.apiServices.DefinitionsKnown()
			synced()
		},
		Progress: s.custom.seen,
	})
}

// followDefinitions passes CustomResourceDefinitions to the controller of custom resources.
func (s *extension) followDefinitions(
	ctx context.Context, name schema.GroupResource, handle func(key string, object runtime.Object), synced func(),
) error {
	return s.objects.Follow(ctx, resource.Key{GroupResource: name}, follow.Options{
		Objects: handle, Synced: synced, Progress: s.custom.seen,
	})
}
