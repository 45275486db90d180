// Package serviceresolver resolves the Service that an admission webhook, a conversion webhook or an APIService names
// to an address, and configures the clients of webhooks.
package serviceresolver

import (
	"errors"
	"net/url"

	"k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
)

// New returns a resolver for Services. It resolves a Service to its cluster IP or, if endpoints is set
// (--enable-aggregator-routing), to a random ready endpoint.
func New(factory informers.SharedInformerFactory, endpoints bool) (webhook.ServiceResolver, error) {
	services := factory.Core().V1().Services().Lister()
	if !endpoints {
		return clusterIP{services}, nil
	}
	slices, err := proxy.NewEndpointSliceIndexerGetter(factory.Discovery().V1().EndpointSlices())
	if err != nil {
		return nil, err
	}
	return endpoint{services, slices}, nil
}

var errIncomplete = errors.New("cannot resolve an empty service name or namespace or port")

type clusterIP struct{ services corelisters.ServiceLister }

// ResolveEndpoint implements webhook.ServiceResolver.
func (r clusterIP) ResolveEndpoint(namespace, name string, port int32) (*url.URL, error) {
	if namespace == "" || name == "" || port == 0 {
		return nil, errIncomplete
	}
	return proxy.ResolveCluster(r.services, namespace, name, port)
}

type endpoint struct {
	services corelisters.ServiceLister
	slices   proxy.EndpointSliceGetter
}

// ResolveEndpoint implements webhook.ServiceResolver.
func (r endpoint) ResolveEndpoint(namespace, name string, port int32) (*url.URL, error) {
	if namespace == "" || name == "" || port == 0 {
		return nil, errIncomplete
	}
	return proxy.ResolveEndpoint(r.services, r.slices, namespace, name, port)
}
