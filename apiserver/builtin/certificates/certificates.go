// Package certificates defines the kinds of the API group certificates.k8s.io.
package certificates

import (
	"fmt"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	api "k8s.io/kubernetes/pkg/apis/certificates"
	_ "k8s.io/kubernetes/pkg/apis/certificates/install"
	"k8s.io/kubernetes/pkg/registry/certificates/certificates"
	"k8s.io/kubernetes/pkg/registry/certificates/clustertrustbundle"
	"k8s.io/kubernetes/pkg/registry/certificates/podcertificaterequest"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/builtin/definition"
	"quorate.dev/apiserver/resource"
)

// Definitions returns the kinds of the group. authorizer decides whether a signer may update the status of a
// PodCertificateRequest.
func Definitions(
	builder *definition.Builder, authorizer authorizer.UnconditionalAuthorizer, clock clock.PassiveClock,
) []*resource.Definition {
	group := builder.Group("certificates.k8s.io", "v1", "v1beta1", "v1alpha1")
	beta := schema.GroupVersion{Group: "certificates.k8s.io", Version: "v1beta1"}
	request := podcertificaterequest.NewStrategy()
	return []*resource.Definition{
		group.Define(definition.Kind{
			Name: "CertificateSigningRequest", ShortNames: []string{"csr"}, Versions: []string{"v1"},
			Strategy: certificates.Strategy, Status: certificates.StatusStrategy, Attributes: certificates.GetAttrs,
			Subresources: []definition.Subresource{definition.Update("approval", certificates.ApprovalStrategy).WithoutTable()},
		}),
		group.Define(definition.Kind{
			Name: "ClusterTrustBundle", Versions: []string{"v1", "v1beta1", "v1alpha1"}, Storage: beta,
			Strategy: clustertrustbundle.Strategy, Attributes: bundleAttributes,
		}),
		group.Define(definition.Kind{
			Name: "PodCertificateRequest", Versions: []string{"v1", "v1beta1"}, Storage: beta,
			Strategy:   request,
			Status:     podcertificaterequest.NewStatusStrategy(request, authorizer, clock),
			Attributes: requestAttributes,
		}),
	}
}

func bundleAttributes(object runtime.Object) (labels.Set, fields.Set, error) {
	bundle, ok := object.(*api.ClusterTrustBundle)
	if !ok {
		return nil, nil, fmt.Errorf("not a cluster trust bundle but %T", object)
	}
	return bundle.Labels, fields.Set{"metadata.name": bundle.Name, "spec.signerName": bundle.Spec.SignerName}, nil
}

func requestAttributes(object runtime.Object) (labels.Set, fields.Set, error) {
	request, ok := object.(*api.PodCertificateRequest)
	if !ok {
		return nil, nil, fmt.Errorf("not a pod certificate request but %T", object)
	}
	return request.Labels, fields.Set{
		"metadata.name": request.Name, "metadata.namespace": request.Namespace,
		"spec.signerName": request.Spec.SignerName, "spec.podName": request.Spec.PodName,
		"spec.nodeName": string(request.Spec.NodeName),
	}, nil
}
