package apiserver

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"

	"quorate.dev/apiserver/aggregator/remote"
	"quorate.dev/apiserver/authentication/serviceaccount"
	"quorate.dev/apiserver/discovery"
	"quorate.dev/apiserver/handlers"
	"quorate.dev/apiserver/request"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/router"
	"quorate.dev/apiserver/serving"
	"quorate.dev/apiserver/startup"
)

// routes returns the router with all paths registered.
func (s *Server) routes(resources *handlers.Handlers) (*router.Router, error) {
	documents, err := discovery.New(discovery.Options{
		Catalogs: s.catalog, Remote: s.background.documents, Addresses: s.background.addresses,
		ServerID: serverID(), Peers: s.background.peers.Current, Registerer: s.metrics,
	})
	if err != nil {
		return nil, err
	}
	documents.Measure(s.metrics)
	version, err := serving.Version(Version(s.config))
	if err != nil {
		return nil, err
	}
	r := router.New(router.Options{
		Catalog: s.catalog, Resources: s.mode.guard(publishFirst{resources, s.custom.awaitDefinitions}), Discovery: documents,
		Complete: startup.Signal(s.complete).Reached, Await: s.custom.awaitDefinitions,
	})
	r.Handle("/version", version)
	r.Handle("/version/", version)
	for _, path := range []string{"/healthz", "/livez", "/readyz"} {
		r.Handle(path, s.health)
		r.HandlePrefix(path+"/", s.health)
	}
	r.Handle("/openapi/v2", s.schemas)
	r.Handle("/openapi/v3", s.schemas)
	r.HandlePrefix("/openapi/v3/", s.schemas)
	s.mode.addRoutes(r)
	listed := index{router: r, catalog: s.catalog, remote: s.background.documents, health: s.health}
	constrained, err := constraints(&s.config.Metrics)
	if err != nil {
		return nil, err
	}
	s.debugRoutes(r, listed, constrained)
	r.Handle("/", listed)
	return r, nil
}

// addRoutes serves the OpenID discovery documents of service-account tokens. As in kube-apiserver, an issuer that is
// not a valid OpenID issuer is logged and does not prevent the start.
func (s *cluster) addRoutes(r *router.Router) {
	published, err := s.auth.tokens.Metadata(address(s.config.Serving))
	const message = "Not serving the OpenID discovery documents of service-account tokens"
	switch {
	case err == nil:
		r.Handle("/.well-known/openid-configuration", document{"application/json", published.Configuration})
		r.Handle("/openid/v1/jwks", document{"application/jwk-set+json", published.Keys})
	case len(s.config.Authentication.ServiceAccountIssuers) > 0:
		s.logger.Error(err, message)
	default:
		s.logger.Info(message, "reason", err.Error())
	}
}

// document is a document that clients may cache.
type document struct {
	contentType string
	current     serviceaccount.Document
}

func (d document) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := request.Produce(r, d.contentType); err != nil {
		request.WriteError(w, r, err)
		return
	}
	body, seconds := d.current()
	w.Header().Set("Content-Type", d.contentType)
	w.Header().Set("Cache-Control", fmt.Sprintf("public, max-age=%d", seconds))
	_, _ = w.Write(body)
}

// index serves the list of paths at /.
type index struct {
	router  *router.Router
	catalog *resource.CatalogHolder
	remote  remote.Source
	health  *serving.Health
}

func (i index) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	body, err := json.MarshalIndent(map[string][]string{"paths": i.paths()}, "", "  ")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(body)
}

// paths returns the paths that kube-apiserver lists, except those for debugging.
func (i index) paths() []string {
	paths := slices.DeleteFunc(i.router.Documents(), func(path string) bool {
		return path == "/" || path == "/api" || path == "/version/" || strings.HasPrefix(path, "/debug/")
	})
	paths = append(paths, "/apis", "/apis/", "/openapi/v3/")
	for _, gv := range i.catalog.Current().GroupVersions() {
		if gv.Group == "" {
			paths = append(paths, "/api", "/api/"+gv.Version)
			continue
		}
		paths = append(paths, "/apis/"+gv.Group, "/apis/"+gv.Group+"/"+gv.Version)
	}
	if set := i.remote.Current(); set != nil {
		for _, of := range set.Remote {
			paths = append(paths, "/apis/"+of.Group, "/apis/"+of.Group+"/"+of.Version)
		}
	}
	paths = append(paths, i.health.Paths()...)
	slices.Sort(paths)
	return slices.Compact(paths)
}

// addresses returns the server addresses in the document /api.
func (s *cluster) addresses() discovery.Addresses {
	kubernetes := s.services.kubernetes.ServiceIP
	return discovery.Addresses{
		Default: address(s.config.Serving), Service: net.JoinHostPort(kubernetes, "443"), ServiceRange: s.services.primary,
	}
}

// hosts returns the host names and addresses of the self-signed certificate of a cluster's server.
func (s *cluster) hosts() []string {
	return append(ownHosts(s.config.Serving), s.services.kubernetes.ServiceIP, "kubernetes.default.svc",
		"kubernetes.default", "kubernetes")
}
