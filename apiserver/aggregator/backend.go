package aggregator

import (
	"net/http"
	"net/url"

	"k8s.io/kube-aggregator/pkg/apis/apiregistration"
)

// Service is what an APIService names as its server.
type Service struct {
	Namespace, Name string
	Port            int32
}

// Backend is the server of one APIService, as of one state of the APIService. It is immutable except for its
// connections.
type Backend struct {
	// Name, Group and Version are those of the APIService.
	Name, Group, Version string
	Service              Service
	// Available reports whether the condition Available was true.
	Available bool

	key         poolKey
	connections *connections
}

// backend returns the backend of an APIService.
func (a *Aggregator) backend(service *apiregistration.APIService) *Backend {
	spec := service.Spec
	named := Service{Namespace: spec.Service.Namespace, Name: spec.Service.Name, Port: spec.Service.Port}
	key := poolKey{named, spec.InsecureSkipTLSVerify, string(spec.CABundle)}
	return &Backend{
		Name: service.Name, Group: spec.Group, Version: spec.Version, Service: named,
		Available: apiregistration.IsAPIServiceConditionTrue(service, apiregistration.Available),
		key:       key, connections: a.pools.acquire(key),
	}
}

// locate returns the URL of a path of the backend.
func (b *Backend) locate(path, query string) (*url.URL, error) {
	address, err := b.connections.resolver.ResolveEndpoint(b.Service.Namespace, b.Service.Name, b.Service.Port)
	if err != nil {
		return nil, err
	}
	return &url.URL{Scheme: "https", Host: address.Host, Path: path, RawQuery: query}, nil
}

// DiscoveryPath returns the path of the resource list of the group version.
func (b *Backend) DiscoveryPath() string {
	if b.Group == "" {
		return "/api/" + b.Version
	}
	return "/apis/" + b.Group + "/" + b.Version
}

// transport returns the round tripper to the backend.
func (b *Backend) transport() (http.RoundTripper, error) {
	pool := b.connections.pool.Load()
	return pool.transport, pool.err
}
