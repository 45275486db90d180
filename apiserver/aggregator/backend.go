package aggregator

import (
	"net/url"

	"k8s.io/kube-aggregator/pkg/apis/apiregistration"
)

// Service is the reference of an APIService to a Service.
type Service struct {
	Namespace, Name string
	Port            int32
}

// Backend is the extension API server of an APIService, as spec and status of the APIService describe it. It is
// immutable except for its connections.
type Backend struct {
	// Name is the name of the APIService; Group and Version are its group version.
	Name, Group, Version string
	Service              Service
	// Available is set if the condition Available of the APIService is true.
	Available bool

	options     *Options
	connections *connections
}

// backend returns a new Backend, whose connections the caller must release.
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

// resolve returns the address of the server, as a URL without a path.
func (b *Backend) resolve() (*url.URL, error) {
	return b.options.Resolver.ResolveEndpoint(b.Service.Namespace, b.Service.Name, b.Service.Port)
}

// pool returns the current transport to the server, or the error of an invalid spec.
func (b *Backend) pool() (*pool, error) {
	current := b.connections.pool.Load()
	return current, current.err
}

// Err returns the error of an invalid spec, with which all requests fail; nil if the spec is valid.
func (b *Backend) Err() error {
	_, err := b.pool()
	return err
}
