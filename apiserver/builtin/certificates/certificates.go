// Package certificates defines the kinds of the API group certificates.k8s.io.
package certificates

import (
	_ "k8s.io/kubernetes/pkg/apis/certificates/install"
	"k8s.io/kubernetes/pkg/registry/certificates/certificates"

	"quorate.dev/apiserver/builtin/definition"
	"quorate.dev/apiserver/resource"
)

// Definitions returns the kinds of the group.
func Definitions(builder *definition.Builder) []*resource.Definition {
	group := builder.Group("certificates.k8s.io", "v1")
	return []*resource.Definition{
		group.Define(definition.Kind{
			Name: "CertificateSigningRequest", ShortNames: []string{"csr"},
			Strategy: certificates.Strategy, Status: certificates.StatusStrategy, Attributes: certificates.GetAttrs,
			Subresources: []definition.Subresource{definition.Update("approval", certificates.ApprovalStrategy)},
		}),
	}
}
