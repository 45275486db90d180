package apiserver

import (
	"context"
	"net/http"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"quorate.dev/apiserver/admission"
	"quorate.dev/apiserver/aggregator/remote"
	"quorate.dev/apiserver/discovery"
	"quorate.dev/apiserver/flowcontrol"
	"quorate.dev/apiserver/peers"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/router"
	"quorate.dev/apiserver/serviceresolver"
	"quorate.dev/apiserver/serving"
	"quorate.dev/apiserver/startup"
)

// mode has the parts in which the API server of a cluster and an extension server differ; cluster and extension
// implement it. Server.compose calls its methods in the order in which they are listed, between the parts that both
// have in common.
type mode interface {
	composeClients() (clients, error)
	composeAuth(context.Context) (*auth, error)
	// definitions returns the built-in resources.
	definitions() ([]*resource.Definition, error)
	// composeBackground composes the controllers and proxies, on which admission may depend.
	composeBackground() (background, error)
	composeAdmission(*admission.Chain) error
	// webhookClients configures the clients of webhooks. A response may have at most maxResponse bytes.
	webhookClients(maxResponse int64) serviceresolver.Clients
	// followDefinitions is a crd.Follow.
	followDefinitions(
		ctx context.Context, name schema.GroupResource, handle func(key string, object runtime.Object), synced func()) error
	// guard wraps the handler of resources.
	guard(router.ResourceHandler) router.ResourceHandler
	// addRoutes registers further paths, or replaces registered ones.
	addRoutes(*router.Router)
	startUp() startup.Sequence
	// synced returns an error until authorization and admission have observed all objects that existed at the start.
	synced(context.Context) error
}

// background has what the controllers and proxies of a replica contribute to the parts that both modes have in common.
// An extension server has neither.
type background struct {
	// flows is nil if the limits of requests in flight apply.
	flows *flowcontrol.Controller
	// peers is nil if requests are not forwarded to other replicas.
	peers *peers.Peers
	// documents has the discovery and OpenAPI documents of extension API servers.
	documents remote.Source
	// forward sends a request for a document of a group version to the extension API server of that version.
	forward func(w http.ResponseWriter, r *http.Request, gv schema.GroupVersion)
	// delegate returns the handler of a path that an extension API server serves, or nil; it is nil in an extension
	// server.
	delegate func(ctx context.Context, path string) http.Handler
	// known are reached when all objects, other than CustomResourceDefinitions, that define resources and existed at the
	// start are known.
	known []startup.Signal
	// checks are further health checks by the name of the hook whose check they follow.
	checks map[string]serving.Check
	// addresses are the server addresses in the document /api.
	addresses discovery.Addresses
	// hosts are the host names and addresses of the self-signed certificate.
	hosts []string
}
