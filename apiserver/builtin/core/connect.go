package core

import (
	"k8s.io/apimachinery/pkg/runtime/schema"

	"quorate.dev/apiserver/builtin/definition"
	"quorate.dev/apiserver/kubelet"
)

// optionsKind returns the kind of the options of a connect request.
func optionsKind(name string) schema.GroupVersionKind {
	return schema.GroupVersionKind{Version: "v1", Kind: name}
}

// podConnections returns the connect subresources of pods.
func podConnections(kubelets *kubelet.Kubelets) []definition.Subresource {
	if kubelets == nil {
		return nil
	}
	return []definition.Subresource{
		definition.Connect("attach", optionsKind("PodAttachOptions"), kubelets.PodAttach()),
		definition.Connect("exec", optionsKind("PodExecOptions"), kubelets.PodExec()),
		definition.Connect("log", optionsKind("Pod"), kubelets.PodLog()),
		definition.Connect("portforward", optionsKind("PodPortForwardOptions"), kubelets.PodPortForward()),
		definition.Connect("proxy", optionsKind("PodProxyOptions"), kubelets.PodProxy()),
	}
}

// serviceConnections returns the connect subresources of Services.
func serviceConnections(kubelets *kubelet.Kubelets) []definition.Subresource {
	if kubelets == nil {
		return nil
	}
	return []definition.Subresource{
		definition.Connect("proxy", optionsKind("ServiceProxyOptions"), kubelets.ServiceProxy()),
	}
}

// nodeConnections returns the connect subresources of nodes.
func nodeConnections(kubelets *kubelet.Kubelets) []definition.Subresource {
	if kubelets == nil {
		return nil
	}
	return []definition.Subresource{definition.Connect("proxy", optionsKind("NodeProxyOptions"), kubelets.NodeProxy())}
}
