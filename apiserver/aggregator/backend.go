package aggregator

import (
	"net/url"

	"k8s.io/kube-aggregator/pkg/apis/apiregistration"
)

// Service is the Service that an APIService names.
type Service struct {
	Namespace, Name string
	Port            int32
}

// Backend is the server of an APIService as its spec and status describe it. It is immutable except for its
// connections.
type Backend struct {
	// Name, Group and Version are those of the APIService.
	Name, Group, Version string
	Service              Service
	// Available reports whether the condition Available is true.
	Available bool

	options     *Options
	connections *connections
}

func (a *Aggregator) backend(service *apiregistration.APIService) *Backend {
	spec := service.Spec
	named := Service{Namespace: spec.Service.Namespace, Name: spec.Service.Name, Port: spec.Service.Port}
	return &Backend{
		Name: service.Name, Group: spec.Group, Version: spec.Version, Service: named,
		Available:   apiregistration.IsAPIServiceConditionTrue(service, apiregistration.Available),
		options:     &a.options,
		connections: a.pools.acquire(poolKey{named, spec.InsecureSkipTLSVerify, string(spec.CABundle)}),
	}
}

// resolve returns the address of the server as a URL without a path.
func (b *Backend) resolve() (*url.URL, error) {
	return b.options.Resolver.ResolveEndpoint(b.Service.Namespace, b.Service.Name, b.Service.Port)
}

// pool returns the connections to the server.
func (b *Backend) pool() (*pool, error) {
	current := b.connections.pool.Load()
	return current, current.err
}

// Err returns the error of an invalid spec, which makes all requests fail.
func (b *Backend) Err() error {
	_, err := b.pool()
	return err
}
