package registry

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"quorate.dev/apiserver/resource"
	"quorate.dev/writelimit"
)

// resourceQuotas are written whenever clients create objects: the quota plugin stores each change of the usage.
var resourceQuotas = schema.GroupResource{Resource: "resourcequotas"}

// limitOwn returns an error if the request is a write of a controller of this server (writelimit.Writer) that has
// written the object too often. old is the stored object, nil if there is none: an object that is created again under
// the same name has its own limit. Writes of quotas are only counted: clients cause them, with any number per hour.
// limitOwn must be called immediately before storage is changed, so that requests that change nothing take no token.
func (r *Registry) limitOwn(ctx context.Context, t resource.Target, old runtime.Object) error {
	writer := writelimit.Writer(ctx)
	if writer == "" || r.ownWrites == nil {
		return nil
	}
	if t.GroupResource() == resourceQuotas {
		r.ownWrites.Count(writer)
		return nil
	}
	object := t.Path()
	if accessor, err := meta.Accessor(old); err == nil {
		object += " with UID " + string(accessor.GetUID())
	}
	err := r.ownWrites.Take(writer, object)
	var refused *writelimit.Error
	if !errors.As(err, &refused) {
		return err
	}
	r.logger.Error(refused, "Refused a write of a controller of this server", "writer", writer)
	// Without a time to wait, client-go returns the error to the controller, which then works on other objects.
	return apierrors.NewTooManyRequestsError(refused.Error())
}

// ownWrite takes the token of a request whose attempts are repeated after conflicts. Attempts that fail change nothing,
// so that the request takes one token, however often it is attempted.
type ownWrite struct{ taken bool }

// limit is limitOwn for the first attempt that reaches storage.
func (o *ownWrite) limit(ctx context.Context, r *Registry, t resource.Target, old runtime.Object) error {
	if o.taken {
		return nil
	}
	err := r.limitOwn(ctx, t, old)
	o.taken = err == nil
	return err
}
