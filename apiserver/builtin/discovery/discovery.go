// Package discovery defines the kinds of the API group discovery.k8s.io.
package discovery

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/apis/discovery"
	_ "k8s.io/kubernetes/pkg/apis/discovery/install"
	"k8s.io/kubernetes/pkg/registry/discovery/endpointslice"

	"quorate.dev/apiserver/builtin/definition"
	"quorate.dev/apiserver/resource"
)

// Definitions returns the kinds of the group.
func Definitions(builder *definition.Builder) []*resource.Definition {
	group := builder.Group("discovery.k8s.io", "v1")
	return []*resource.Definition{
		group.Define(definition.Kind{
			Name: "EndpointSlice", Strategy: slices{endpointslice.Strategy, endpointslice.Strategy},
		}),
	}
}

// slices is upstream's strategy without the check of IP addresses in slices of the address type FQDN, which logs an
// error for each host name.
type slices struct {
	definition.Strategy
	rest.DeclarativeValidationStrategy
}

// WarningsOnUpdate implements rest.RESTUpdateStrategy.
func (s slices) WarningsOnUpdate(ctx context.Context, object, old runtime.Object) []string {
	if object.(*discovery.EndpointSlice).AddressType == discovery.AddressTypeFQDN {
		return nil
	}
	return s.Strategy.WarningsOnUpdate(ctx, object, old)
}

// WarningsOnCreate implements rest.RESTCreateStrategy.
func (s slices) WarningsOnCreate(ctx context.Context, object runtime.Object) []string {
	if slice := object.(*discovery.EndpointSlice); slice.AddressType == discovery.AddressTypeFQDN {
		// The warning is about the type, which is deprecated.
		object = &discovery.EndpointSlice{AddressType: slice.AddressType}
	}
	return s.Strategy.WarningsOnCreate(ctx, object)
}
