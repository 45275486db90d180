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

// proxied are the methods that go through to a pod, a service or a node.
var proxied = []string{
	http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodHead, http.MethodOptions,
}

// PodProxy answers pods/proxy: what a pod serves by HTTP.
func (k *Kubelets) PodProxy() *resource.Connect {
	return &resource.Connect{Methods: proxied, Path: true, Options: optionsOf[api.PodProxyOptions](), Handler: k.podProxy}
}

// ServiceProxy answers services/proxy: what one of a service's pods serves by HTTP.
func (k *Kubelets) ServiceProxy() *resource.Connect {
	return &resource.Connect{Methods: proxied, Path: true, Options: optionsOf[api.ServiceProxyOptions](), Handler: k.serviceProxy}
}

// NodeProxy answers nodes/proxy: what a kubelet, or another port of its node, serves by HTTP.
func (k *Kubelets) NodeProxy() *resource.Connect {
	return &resource.Connect{Methods: proxied, Path: true, Options: optionsOf[api.NodeProxyOptions](), Handler: k.nodeProxy}
}

func (k *Kubelets) podProxy(ctx context.Context, _ resource.Client, call resource.Call) (http.Handler, error) {
	options, ok := call.Body.(*api.PodProxyOptions)
	if !ok {
		return nil, wrongOptions(call.Body)
	}
	location, transport, err := pod.ResourceLocation(ctx, k.in(pods, call.Namespace), k.pods, call.Name)
	if err != nil {
		return nil, err
	}
	return k.below(location, options.Path, transport), nil
}

func (k *Kubelets) serviceProxy(ctx context.Context, _ resource.Client, call resource.Call) (http.Handler, error) {
	options, ok := call.Body.(*api.ServiceProxyOptions)
	if !ok {
		return nil, wrongOptions(call.Body)
	}
	location, err := k.serviceLocation(ctx, call.Namespace, call.Name)
	if err != nil {
		return nil, err
	}
	return k.below(location, options.Path, k.pods), nil
}

func (k *Kubelets) nodeProxy(ctx context.Context, _ resource.Client, call resource.Call) (http.Handler, error) {
	options, ok := call.Body.(*api.NodeProxyOptions)
	if !ok {
		return nil, wrongOptions(call.Body)
	}
	location, transport, err := node.ResourceLocation(k.in(nodes, ""), k.nodes, k.pods, ctx, call.Name)
	if err != nil {
		return nil, err
	}
	return k.below(location, options.Path, transport), nil
}

// below returns a proxy to a path of the place found. Links and redirects in its answers lead through this server.
func (k *Kubelets) below(location *url.URL, path string, transport http.RoundTripper) http.Handler {
	location.Path = utilnet.JoinPreservingTrailingSlash(location.Path, path)
	return k.throttled(location, transport, true, false)
}
