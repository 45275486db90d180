package native

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"quorate.dev/apiserver/admission"
	"quorate.dev/apiserver/builtin/certificates"
)

// CertificateRequests counts the certificates that are issued by updates of CertificateSigningRequests. It implements
// admission.Reserver for the sake of Commit and reserves nothing.
type CertificateRequests struct {
	Metrics *certificates.Metrics
}

// Allocates implements admission.Reserver.
func (CertificateRequests) Allocates(schema.GroupResource) bool { return false }

// Reserve implements admission.Reserver.
func (CertificateRequests) Reserve(context.Context, *admission.Attributes) error { return nil }

// Rollback implements admission.Reserver.
func (CertificateRequests) Rollback(context.Context, *admission.Attributes) {}

// Commit implements admission.Reserver.
func (c CertificateRequests) Commit(_ context.Context, a *admission.Attributes) {
	requests := schema.GroupResource{Group: "certificates.k8s.io", Resource: "certificatesigningrequests"}
	if a.Operation == admission.Update && a.Subresource == "status" && a.Definition.GroupResource() == requests {
		c.Metrics.StatusUpdated(a.Old, a.Object)
	}
}
