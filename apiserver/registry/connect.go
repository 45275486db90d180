package registry

import (
	"context"
	"net/http"

	"k8s.io/apimachinery/pkg/runtime"

	"quorate.dev/apiserver/admission"
	"quorate.dev/apiserver/resource"
)

// Connect finds who answers a request that goes on to somebody else, if admission lets it.
func (r *Registry) Connect(ctx context.Context, t Target, options runtime.Object) (http.Handler, error) {
	ctx = t.context(ctx)
	connect := t.Endpoint.Connect
	if !connect.Reads {
		if err := r.admit(ctx, r.attributes(ctx, t, admission.Connect, options, nil, WriteOptions{})); err != nil {
			return nil, err
		}
	}
	return connect.Handler(ctx, r.Client(), resource.Call{
		Definition: t.Definition, Version: t.Version, Namespace: t.Namespace, Name: t.Name, Body: options,
	})
}
