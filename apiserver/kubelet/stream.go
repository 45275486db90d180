package kubelet

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/component-base/featuregate"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/pkg/kubelet/client"
	"k8s.io/kubernetes/pkg/registry/core/pod"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"quorate.dev/apiserver/request"
	"quorate.dev/apiserver/resource"
)

// upgradeable are the methods that can start a stream. Browsers open WebSockets with GET.
var upgradeable = []string{http.MethodGet, http.MethodPost}

// PodExec serves pods/exec.
func (k *Kubelets) PodExec() *resource.Connect {
	return &resource.Connect{Methods: upgradeable, Options: optionsOf[api.PodExecOptions](), Handler: k.exec}
}

// PodAttach serves pods/attach.
func (k *Kubelets) PodAttach() *resource.Connect {
	return &resource.Connect{Methods: upgradeable, Options: optionsOf[api.PodAttachOptions](), Handler: k.attach}
}

// PodPortForward serves pods/portforward.
func (k *Kubelets) PodPortForward() *resource.Connect {
	return &resource.Connect{Methods: upgradeable, Options: optionsOf[api.PodPortForwardOptions](), Handler: k.forward}
}

func (k *Kubelets) exec(ctx context.Context, call resource.Call) (http.Handler, error) {
	if err := k.authorizeCreate(ctx); err != nil {
		return nil, err
	}
	options, ok := call.Body.(*api.PodExecOptions)
	if !ok {
		return nil, wrongOptions(call.Body)
	}
	location, kubelet, err := pod.ExecLocation(ctx, k.getter(pods, call.Namespace), k.nodes, call.Name, options)
	if err != nil {
		return nil, err
	}
	streams := proxy.Options{Stdin: options.Stdin, Stdout: options.Stdout, Stderr: options.Stderr, Tty: options.TTY}
	return k.command("exec", location, kubelet, streams), nil
}

func (k *Kubelets) attach(ctx context.Context, call resource.Call) (http.Handler, error) {
	if err := k.authorizeCreate(ctx); err != nil {
		return nil, err
	}
	options, ok := call.Body.(*api.PodAttachOptions)
	if !ok {
		return nil, wrongOptions(call.Body)
	}
	location, kubelet, err := pod.AttachLocation(ctx, k.getter(pods, call.Namespace), k.nodes, call.Name, options)
	if err != nil {
		return nil, err
	}
	streams := proxy.Options{Stdin: options.Stdin, Stdout: options.Stdout, Stderr: options.Stderr, Tty: options.TTY}
	return k.command("attach", location, kubelet, streams), nil
}

func (k *Kubelets) forward(ctx context.Context, call resource.Call) (http.Handler, error) {
	if err := k.authorizeCreate(ctx); err != nil {
		return nil, err
	}
	options, ok := call.Body.(*api.PodPortForwardOptions)
	if !ok {
		return nil, wrongOptions(call.Body)
	}
	location, kubelet, err := pod.PortForwardLocation(ctx, k.getter(pods, call.Namespace), k.nodes, call.Name, options)
	if err != nil {
		return nil, err
	}
	handler := k.throttled(location, kubelet.Transport, false, true)
	if !k.translates("portforward", features.PortForwardWebsockets, kubelet) {
		return handler, nil
	}
	return proxy.NewTranslatingHandler(handler, proxy.NewTunnelingHandler(handler),
		wsstream.IsWebSocketRequestWithTunnelingProtocol), nil
}

// command returns the handler that connects a client to a process in a container. It translates WebSocket to SPDY
// unless the kubelet supports WebSocket.
func (k *Kubelets) command(
	subresource string, location *url.URL, kubelet *client.ConnectionInfo, streams proxy.Options,
) http.Handler {
	handler := k.throttled(location, kubelet.Transport, false, true)
	if !k.translates(subresource, features.TranslateStreamCloseWebsocketRequests, kubelet) {
		return handler
	}
	translator := proxy.NewStreamTranslatorHandler(location, kubelet.Transport, k.bytesPerSecond, streams)
	return proxy.NewTranslatingHandler(handler, translator, wsstream.IsWebSocketRequestWithStreamCloseProtocol)
}

// translates reports whether this server translates WebSocket to SPDY for the kubelet, and counts the request.
func (k *Kubelets) translates(subresource string, gate featuregate.Feature, kubelet *client.ConnectionInfo) bool {
	if !utilfeature.DefaultFeatureGate.Enabled(gate) {
		return false
	}
	if utilfeature.DefaultFeatureGate.Enabled(features.ExtendWebSocketsToKubelet) &&
		slices.Contains(kubelet.NodeFeatures, string(features.ExtendWebSocketsToKubelet)) {
		k.metrics.streams.WithLabelValues(subresource, "proxied_to_kubelet").Inc()
		return false
	}
	k.metrics.streams.WithLabelValues(subresource, "translated_at_apiserver").Inc()
	return true
}

// authorizeCreate checks that the user of a request that starts a stream has the permission for create, also if the
// method is GET.
func (k *Kubelets) authorizeCreate(ctx context.Context) error {
	if !utilfeature.DefaultFeatureGate.Enabled(features.AuthorizePodWebsocketUpgradeCreatePermission) {
		return nil
	}
	record := request.From(ctx)
	if record == nil || k.authorizer == nil {
		return apierrors.NewInternalError(errors.New("no authorizer available"))
	}
	if record.Info.Verb == "create" {
		// The filters have authorized the request for create.
		return nil
	}
	attributes := record.Attributes
	attributes.Verb = "create"
	decision, reason, err := k.authorizer.Authorize(ctx, &attributes)
	if err != nil {
		return err
	}
	if decision != authorizer.DecisionAllow {
		resource := schema.GroupResource{Group: record.Info.APIGroup, Resource: record.Info.Resource}
		return apierrors.NewForbidden(resource, record.Info.Name, errors.New(reason))
	}
	return nil
}
