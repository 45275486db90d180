package native

import (
	"context"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"quorate.dev/apiserver/admission"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/serviceip"
)

// ServiceAddresses allocates and releases the cluster IPs and node ports of Services.
type ServiceAddresses struct {
	Allocator *serviceip.Allocator
	Objects   resource.Client
	Logger    logr.Logger
}

var services = schema.GroupResource{Resource: "services"}

// Allocates implements admission.Reserver.
func (ServiceAddresses) Allocates(of schema.GroupResource) bool { return of == services }

// concerns reports whether a write can change the addresses and ports of a Service: any write of the Service itself,
// and any deletion. A deletion may have a subresource: an update of the status that removes the last finalizer deletes
// the object.
func (ServiceAddresses) concerns(a *admission.Attributes) bool {
	return a.Definition.GroupResource() == services && (a.Subresource == "" || a.Operation == admission.Delete)
}

// Reserve implements admission.Reserver.
func (s ServiceAddresses) Reserve(ctx context.Context, a *admission.Attributes) error {
	if a.Operation == admission.Delete || !s.concerns(a) {
		return nil
	}
	return s.Allocator.Allocate(ctx, s.Objects, a.Object, a.Old, a.DryRun)
}

// Rollback implements admission.Reserver.
func (s ServiceAddresses) Rollback(ctx context.Context, a *admission.Attributes) {
	if a.Operation == admission.Delete || a.DryRun || !s.concerns(a) {
		return
	}
	s.report(s.Allocator.Rollback(context.WithoutCancel(ctx), s.Objects, a.Object, a.Old), a)
}

// Commit implements admission.Reserver.
func (s ServiceAddresses) Commit(ctx context.Context, a *admission.Attributes) {
	if !s.concerns(a) {
		return
	}
	ctx = context.WithoutCancel(ctx)
	switch a.Operation {
	case admission.Update:
		s.report(s.Allocator.Release(ctx, s.Objects, a.Old, a.Object), a)
	case admission.Delete:
		s.report(s.Allocator.Deleted(ctx, s.Objects, a.Old), a)
	}
}

func (s ServiceAddresses) report(err error, a *admission.Attributes) {
	if err != nil {
		s.Logger.Error(err, "Failed to release addresses or ports of a Service", "namespace", a.Namespace, "name", a.Name)
	}
}
