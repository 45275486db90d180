package apiserver

import (
	"context"
	"fmt"

	"quorate.dev/apiserver/crd"
	"quorate.dev/apiserver/registry/client"
	"quorate.dev/apiserver/registry/follow"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/startup"
)

// customResources is the controller of custom resources, with functions that wait for its progress. None of them waits
// if --runtime-config disables CustomResourceDefinitions.
type customResources struct {
	*crd.Controller
	catalog *resource.CatalogHolder
	objects *client.Client
	// seen records up to which revision mode.followDefinitions has passed on changes of definitions.
	seen *follow.Progress
}

func (s *Server) composeCustom() (customResources, error) {
	c := customResources{catalog: s.catalog, objects: s.objects, seen: &follow.Progress{}}
	webhooks := s.mode.webhookClients(maxConversion)
	converters, err := crd.NewConverters(webhooks.Resolver(s.resolver), webhooks.Wrap)
	if err != nil {
		return c, fmt.Errorf("prepare conversion webhooks: %w", err)
	}
	c.Controller, err = crd.NewController(crd.ControllerOptions{
		Objects: s.objects.Named("customresourcedefinitions"), Follow: s.mode.followDefinitions,
		Publish: s.catalogs.publishCustom, BuiltIn: s.catalogs.isBuiltIn,
		AwaitFollowed: c.awaitFollowed, Converters: converters, Idle: s.idle, Clock: s.clock,
		Logger: s.logger.WithName("crd"),
	})
	return c, err
}

// served reports whether CustomResourceDefinitions are served.
func (c customResources) served() bool {
	_, served := c.catalog.Current().Find(crd.Resource)
	return served
}

// awaitFollowed returns when mode.followDefinitions has passed on every change of a CustomResourceDefinition that was
// stored before the call.
func (c customResources) awaitFollowed(ctx context.Context) error {
	return c.objects.AwaitFollowed(ctx, crd.Resource, c.seen)
}

// awaitDefinitions returns when the catalog has every CustomResourceDefinition that was stored before the call.
func (c customResources) awaitDefinitions(ctx context.Context) error {
	if !c.served() {
		return nil
	}
	return c.Await(ctx)
}

// definitionsKnown returns a channel that is closed when the catalog has all CustomResourceDefinitions that existed at
// the start. If none are served, the channel is already closed.
func (c customResources) definitionsKnown() startup.Signal {
	if c.served() {
		return c.Synced()
	}
	known := make(chan struct{})
	close(known)
	return known
}
