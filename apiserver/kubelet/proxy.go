package kubelet

import (
	"context"
	"net/http"
	"net/url"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/registry/core/node"
	"k8s.io/kubernetes/pkg/registry/core/pod"

	"quorate.dev/apiserver/resource"
)

// proxied are the methods that proxy subresources support.
var proxied = []string{
	http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete,
	http.MethodHead, http.MethodOptions,
}

// PodProxy serves pods/proxy.
func (k *Kubelets) PodProxy() *resource.Connect {
	return &resource.Connect{Methods: proxied, Path: true, Options: optionsOf[api.PodProxyOptions](), Handler: k.podProxy}
}

// ServiceProxy serves services/proxy.
func (k *Kubelets) ServiceProxy() *resource.Connect {
	return &resource.Connect{
		Methods: proxied, Path: true, Options: optionsOf[api.ServiceProxyOptions](), Handler: k.serviceProxy,
	}
}

// NodeProxy serves nodes/proxy.
func (k *Kubelets) NodeProxy() *resource.Connect {
	return &resource.Connect{
		Methods: proxied, Path: true, Options: optionsOf[api.NodeProxyOptions](), Handler: k.nodeProxy,
	}
}

func (k *Kubelets) podProxy(ctx context.Context, call resource.Call) (http.Handler, error) {
	options, ok := call.Body.(*api.PodProxyOptions)
	if !ok {
		return nil, wrongOptions(call.Body)
	}
	location, transport, err := pod.ResourceLocation(ctx, k.getter(pods, call.Namespace), k.pods, call.Name)
	if err != nil {
		return nil, err
	}
	return k.proxyTo(location, options.Path, transport), nil
}

func (k *Kubelets) serviceProxy(ctx context.Context, call resource.Call) (http.Handler, error) {
	options, ok := call.Body.(*api.ServiceProxyOptions)
	if !ok {
		return nil, wrongOptions(call.Body)
	}
	location, err := k.serviceLocation(ctx, call.Namespace, call.Name)
	if err != nil {
		return nil, err
	}
	return k.proxyTo(location, options.Path, k.pods), nil
}

func (k *Kubelets) nodeProxy(ctx context.Context, call resource.Call) (http.Handler, error) {
	options, ok := call.Body.(*api.NodeProxyOptions)
	if !ok {
		return nil, wrongOptions(call.Body)
	}
	location, transport, err := node.ResourceLocation(k.getter(nodes, ""), k.nodes, k.pods, ctx, call.Name)
	if err != nil {
		return nil, err
	}
	return k.proxyTo(location, options.Path, transport), nil
}

// proxyTo returns a proxy to a path at location. It rewrites the links and redirects in responses, so that clients
// follow them through this server.
func (k *Kubelets) proxyTo(location *url.URL, path string, transport http.RoundTripper) http.Handler {
	location.Path = utilnet.JoinPreservingTrailingSlash(location.Path, path)
	return k.throttled(location, transport, true, false)
}
