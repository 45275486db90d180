package core

import (
	"k8s.io/apimachinery/pkg/runtime/schema"

	"quorate.dev/apiserver/builtin/definition"
	"quorate.dev/apiserver/kubelet"
)

// optionsKind returns the kind of the options of a connection.
func optionsKind(name string) schema.GroupVersionKind {
	return schema.GroupVersionKind{Version: "v1", Kind: name}
}

// podConnections are the subresources of pods that connect to backends.
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

// serviceConnections are the subresources of Services that connect to backends.
func serviceConnections(kubelets *kubelet.Kubelets) []definition.Subresource {
	if kubelets == nil {
		return nil
	}
	return []definition.Subresource{definition.Connect("proxy", optionsKind("ServiceProxyOptions"), kubelets.ServiceProxy())}
}

// nodeConnections are the subresources of nodes that connect to backends.
func nodeConnections(kubelets *kubelet.Kubelets) []definition.Subresource {
	if kubelets == nil {
		return nil
	}
	return []definition.Subresource{definition.Connect("proxy", optionsKind("NodeProxyOptions"), kubelets.NodeProxy())}
}
