package apiserver

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"

	"quorate.dev/apiserver/aggregator/remote"
	"quorate.dev/apiserver/authentication/serviceaccount"
	"quorate.dev/apiserver/discovery"
	"quorate.dev/apiserver/handlers"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/router"
	"quorate.dev/apiserver/serving"
)

// routes returns the router with all paths.
func (s *Server) routes(publisher *resource.CatalogHolder, resources *handlers.Handlers) (*router.Router, error) {
	documents, err := discovery.New(discovery.Options{
		Catalogs: publisher, Remote: s.aggregation.source(), Addresses: s.mode.addresses(),
		ServerID: s.serverID(), Peers: s.peers.Current, Registerer: s.metrics,
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
		Catalog: publisher, Resources: s.mode.guard(publishFirst{resources, s.awaitDefinitions}), Discovery: documents,
		Complete: closedCheck(s.complete).reached, Await: s.awaitDefinitions,
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
	s.mode.routes(r)
	listed := index{router: r, catalog: publisher, remote: s.aggregation.source(), health: s.health}
	constrained, err := constraints(&s.config.Metrics)
	if err != nil {
		return nil, err
	}
	s.debugRoutes(r, listed, constrained)
	r.Handle("/", listed)
	return r, nil
}

// publishKeys serves the OpenID discovery documents of service-account tokens. As in kube-apiserver, an issuer that is
// not a valid OpenID issuer is logged and does not prevent the start.
func (s *Server) publishKeys(r *router.Router) {
	published, err := s.auth.tokens.Metadata(s.address())
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

// document is a response that clients may cache.
type document struct {
	contentType string
	current     serviceaccount.Document
}

func (d document) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	body, seconds := d.current()
	w.Header().Set("Content-Type", d.contentType)
	w.Header().Set("Cache-Control", fmt.Sprintf("public, max-age=%d", seconds))
	_, _ = w.Write(body)
}

// index serves the list of paths.
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

// paths returns the paths that kube-apiserver lists, without those for debugging.
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

// address returns the host and port at which clients reach this server.
func (s *Server) address() string {
	host := s.config.Serving.ExternalHostname
	if host == "" {
		host = s.advertised().String()
	}
	return net.JoinHostPort(host, strconv.Itoa(s.config.Serving.Port))
}

// discoveryAddresses returns the server addresses in discovery documents.
func (s *Server) discoveryAddresses() discovery.Addresses {
	kubernetes := s.services.kubernetes.ServiceIP
	return discovery.Addresses{Default: s.address(), Service: net.JoinHostPort(kubernetes, "443"), ServiceRange: s.services.primary}
}

// hosts returns the names and addresses for the self-signed certificate of a cluster's server.
func (s *Server) hosts() []string {
	return append(s.ownHosts(), s.services.kubernetes.ServiceIP, "kubernetes.default.svc", "kubernetes.default", "kubernetes")
}

// ownHosts returns the names and addresses of this machine.
func (s *Server) ownHosts() []string {
	names := []string{s.advertised().String(), "localhost", "127.0.0.1"}
	if name, err := os.Hostname(); err == nil {
		names = append(names, name)
	}
	if ip := net.ParseIP(s.config.Serving.BindAddress); ip != nil && !ip.IsUnspecified() {
		names = append(names, ip.String())
	}
	return names
}
