package apiserver

import (
	"context"

	"k8s.io/apiserver/pkg/util/webhook"

	"quorate.dev/apiserver/admission"
	"quorate.dev/apiserver/crd"
	"quorate.dev/apiserver/discovery"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/router"
	"quorate.dev/apiserver/serving"
)

// mode has the parts in which the server of a cluster and an extension server differ: cluster.go and extension.go have
// one value each. server.go composes everything else, the same for both.
type mode struct {
	// name is the first part of the user agent.
	name string
	// clients sets the clients, the informers and the resolver of Services that upstream's code uses.
	clients func(*resource.CatalogHolder) error
	// webhookClients configures the clients of webhooks, whose responses have at most maxResponse bytes.
	webhookClients func(maxResponse int64) webhook.AuthenticationInfoResolverWrapper
	auth           func(context.Context) (*auth, error)
	// definitions returns the built-in resources.
	definitions func(*resource.CatalogHolder) ([]*resource.Definition, error)
	// serves reports whether the custom resources of a group are served.
	serves func(group string) bool
	// follow follows CustomResourceDefinitions.
	follow crd.Follow
	// known returns the channels that are closed when all objects that existed at the start and define resources are known.
	known func() []<-chan struct{}
	// background composes what runs beside requests; admission may depend on it.
	background func() error
	admission  func(*admission.Chain) error
	// guard wraps the handler of resources.
	guard func(router.ResourceHandler) router.ResourceHandler
	// routes registers further paths, or replaces some.
	routes    func(r *router.Router)
	addresses func() discovery.Addresses
	// hosts returns the names and addresses for the self-signed certificate.
	hosts   func() []string
	startUp func() []hook
	// synced fails until authorization and admission have seen all objects that existed at the start.
	synced func(context.Context) error
	// checks are further health checks, by the hook that each follows.
	checks map[string]serving.Check
}
