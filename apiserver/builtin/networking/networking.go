// Package networking defines the kinds of the API group networking.k8s.io.
package networking

import (
	_ "k8s.io/kubernetes/pkg/apis/networking/install"
	"k8s.io/kubernetes/pkg/registry/networking/ingress"
	"k8s.io/kubernetes/pkg/registry/networking/ingressclass"
	"k8s.io/kubernetes/pkg/registry/networking/ipaddress"
	"k8s.io/kubernetes/pkg/registry/networking/networkpolicy"
	"k8s.io/kubernetes/pkg/registry/networking/servicecidr"

	"quorate.dev/apiserver/builtin/definition"
	"quorate.dev/apiserver/resource"
)

// Definitions returns the kinds of the group.
func Definitions(builder *definition.Builder) []*resource.Definition {
	group := builder.Group("networking.k8s.io", "v1", "v1beta1")
	stable := []string{"v1"}
	return []*resource.Definition{
		group.Define(definition.Kind{
			Name: "Ingress", Versions: stable, ShortNames: []string{"ing"},
			Strategy: ingress.Strategy, Status: ingress.StatusStrategy, Path: "ingress",
		}),
		group.Define(definition.Kind{Name: "IngressClass", Versions: stable, Strategy: ingressclass.Strategy}),
		group.Define(definition.Kind{Name: "IPAddress", ShortNames: []string{"ip"}, Strategy: ipaddress.Strategy}),
		group.Define(definition.Kind{
			Name: "NetworkPolicy", Versions: stable, ShortNames: []string{"netpol"}, Strategy: networkpolicy.Strategy,
		}),
		group.Define(definition.Kind{Name: "ServiceCIDR", Strategy: servicecidr.Strategy, Status: servicecidr.StatusStrategy}),
	}
}
