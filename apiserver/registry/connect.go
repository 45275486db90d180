package registry

import (
	"context"
	"net/http"

	"k8s.io/apimachinery/pkg/runtime"

	"quorate.dev/apiserver/admission"
	"quorate.dev/apiserver/resource"
)

// Connect runs admission on a request to a proxying subresource (exec, log, proxy) and returns the handler that
// serves it. Requests that read, such as logs, have no admission, because they are GETs and not CONNECTs in
// kube-apiserver. The caller runs the handler; Connect itself opens no connection to a kubelet.
func (r *Registry) Connect(ctx context.Context, t resource.Target, options runtime.Object) (http.Handler, error) {
	ctx = t.WithNamespace(ctx)
	connect := t.Endpoint.Connect
	if !connect.Reads {
		a := attributes(ctx, t, WriteOptions{}, &admission.Attributes{Operation: admission.Connect, Object: options})
		if err := r.admit(ctx, a); err != nil {
			return nil, err
		}
	}
	return connect.Handler(ctx, resource.Call{
		Definition: t.Definition, Version: t.Version, Namespace: t.Namespace, Name: t.Name, Body: options,
	})
}
