package apiserver

import (
	"context"
	"net/http"

	"quorate.dev/apiserver/admission"
	"quorate.dev/apiserver/crd"
	"quorate.dev/apiserver/discovery"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/router"
)

// mode has the parts in which the server of a cluster and an extension server differ: cluster.go and extension.go have
// one value each. server.go composes everything else, the same for both.
type mode struct {
	// clients sets the clients, the informers and the resolver of Services that upstream's code uses.
	clients func(*resource.CatalogHolder) error
	auth    func(context.Context) (*auth, error)
	// definitions returns the built-in resources.
	definitions func(*resource.CatalogHolder) ([]*resource.Definition, error)
	// serves reports whether the custom resources of a group are served.
	serves func(group string) bool
	// follow follows CustomResourceDefinitions.
	follow crd.Follow
	// background composes what runs beside requests; admission may depend on it.
	background func() error
	admission  func(*admission.Chain) error
	// routes registers further paths, or replaces some. schemas serves the OpenAPI documents.
	routes    func(r *router.Router, schemas http.Handler)
	addresses func() discovery.Addresses
	// hosts returns the names and addresses for the self-signed certificate.
	hosts   func() []string
	startUp func() []hook
	// synced fails until authorization and admission have seen all objects that existed at the start.
	synced func(context.Context) error
	// checks adds further health checks.
	checks func()
}
