// Package core defines the kinds of the core API group, and the logic that is not part of upstream's strategies:
// binding, eviction, the deletion of namespaces, component statuses and the connect subresources.
package core

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	_ "k8s.io/kubernetes/pkg/apis/authentication/install"
	api "k8s.io/kubernetes/pkg/apis/core"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	_ "k8s.io/kubernetes/pkg/apis/policy/install"
	"k8s.io/kubernetes/pkg/registry/core/configmap"
	"k8s.io/kubernetes/pkg/registry/core/endpoint"
	"k8s.io/kubernetes/pkg/registry/core/event"
	"k8s.io/kubernetes/pkg/registry/core/limitrange"
	"k8s.io/kubernetes/pkg/registry/core/namespace"
	"k8s.io/kubernetes/pkg/registry/core/node"
	"k8s.io/kubernetes/pkg/registry/core/persistentvolume"
	"k8s.io/kubernetes/pkg/registry/core/persistentvolumeclaim"
	"k8s.io/kubernetes/pkg/registry/core/pod"
	"k8s.io/kubernetes/pkg/registry/core/podtemplate"
	"k8s.io/kubernetes/pkg/registry/core/replicationcontroller"
	"k8s.io/kubernetes/pkg/registry/core/resourcequota"
	"k8s.io/kubernetes/pkg/registry/core/secret"
	"k8s.io/kubernetes/pkg/registry/core/service"
	"k8s.io/kubernetes/pkg/registry/core/serviceaccount"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/builtin/definition"
	"quorate.dev/apiserver/builtin/scale"
	"quorate.dev/apiserver/kubelet"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/serviceip"
)

// Options are the dependencies of the core group.
type Options struct {
	// Objects is used by the actions of pods.
	Objects  resource.Client
	EventTTL time.Duration
	// Token implements serviceaccounts/token; nil disables it.
	Token resource.Action
	// Kubelets implements the connect subresources; nil disables them.
	Kubelets *kubelet.Kubelets
	// Etcd has a health check for each member of etcd.
	Etcd  []func(context.Context) error
	Clock clock.PassiveClock
	// ServiceFamily is the default IP family of Services; empty means IPv4.
	ServiceFamily corev1.IPFamily
}

// The kinds of subresources that have another kind than their parent.
var (
	bindingKind = schema.GroupVersionKind{Version: "v1", Kind: "Binding"}
	tokenKind   = schema.GroupVersionKind{Group: "authentication.k8s.io", Version: "v1", Kind: "TokenRequest"}
)

// Definitions returns the kinds of the group.
func Definitions(builder *definition.Builder, options Options) []*resource.Definition {
	group := builder.Group("", "v1")
	definitions := []*resource.Definition{
		group.DefineAction("Binding", true, binder{options.Objects}.bind),
		group.DefineComputed("ComponentStatus", "componentstatuses", []string{"cs"}, newComponents(options.Etcd).compute),
		group.Define(podKind(options)),
		group.Define(namespaceKind(options.Clock)),
		group.Define(serviceAccountKind(options.Token)),
	}
	for _, kind := range append(plainKinds(), kindsWithStatus(options)...) {
		definitions = append(definitions, group.Define(kind))
	}
	return append(definitions, group.Define(EventKind(options.EventTTL)))
}

func podKind(options Options) definition.Kind {
	return definition.Kind{
		Name: "Pod", ReturnsDeleted: true, ShortNames: []string{"po"}, Categories: []string{"all"},
		Strategy: pod.Strategy, Status: pod.StatusStrategy, Attributes: pod.GetAttrs, Index: definition.NodeNameIndex(10),
		Subresources: append([]definition.Subresource{
			bindingSubresource(options.Objects),
			definition.Update("ephemeralcontainers", pod.EphemeralContainersStrategy).WithoutTable(),
			evictionSubresource(options.Objects, options.Clock),
			definition.Update("resize", pod.ResizeStrategy).WithoutTable(),
		}, podConnections(options.Kubelets)...),
	}
}

func namespaceKind(clock clock.PassiveClock) definition.Kind {
	return definition.Kind{
		Name: "Namespace", ReturnsDeleted: true, ShortNames: []string{"ns"},
		Verbs:    []string{"create", "delete", "get", "list", "patch", "update", "watch"},
		Strategy: namespace.Strategy, Status: namespace.StatusStrategy, Attributes: namespace.GetAttrs,
		Delete: namespaceDeletion{namespace.Strategy, clock},
		Subresources: []definition.Subresource{{
			Name: "finalize", Verbs: []string{"update"}, Update: namespace.FinalizeStrategy,
		}},
	}
}

func serviceAccountKind(token resource.Action) definition.Kind {
	kind := definition.Kind{
		Name: "ServiceAccount", ReturnsDeleted: true, ShortNames: []string{"sa"}, Strategy: serviceaccount.Strategy,
	}
	if token != nil {
		kind.Subresources = []definition.Subresource{definition.Action("token", tokenKind, token).WithMetadata()}
	}
	return kind
}

func plainKinds() []definition.Kind {
	return []definition.Kind{
		{Name: "ConfigMap", ShortNames: []string{"cm"}, Strategy: configmap.Strategy, Attributes: configmap.GetAttrs},
		{
			Name: "Endpoints", Plural: "endpoints", ShortNames: []string{"ep"},
			Strategy: endpoint.Strategy, Path: "services/endpoints",
		},
		{Name: "LimitRange", ShortNames: []string{"limits"}, Strategy: limitrange.Strategy, Plain: true},
		{Name: "PodTemplate", ReturnsDeleted: true, Strategy: podtemplate.Strategy},
		{Name: "Secret", Strategy: secret.Strategy, Attributes: secret.GetAttrs},
	}
}

func kindsWithStatus(options Options) []definition.Kind {
	return []definition.Kind{
		{
			Name: "Node", ShortNames: []string{"no"}, Path: "minions",
			Strategy: node.Strategy, Status: node.StatusStrategy, Attributes: node.GetAttrs,
			Subresources: nodeConnections(options.Kubelets),
		},
		{
			Name: "PersistentVolume", ReturnsDeleted: true, ShortNames: []string{"pv"},
			Strategy: persistentvolume.Strategy, Status: persistentvolume.StatusStrategy, Attributes: persistentvolume.GetAttrs,
		},
		{
			Name: "PersistentVolumeClaim", ReturnsDeleted: true, ShortNames: []string{"pvc"},
			Strategy: persistentvolumeclaim.Strategy, Status: persistentvolumeclaim.StatusStrategy,
			Attributes: persistentvolumeclaim.GetAttrs, Decorate: decorateClaim,
		},
		{
			Name: "ReplicationController", ShortNames: []string{"rc"}, Categories: []string{"all"}, Path: "controllers",
			Strategy: replicationcontroller.Strategy, Status: replicationcontroller.StatusStrategy,
			Attributes:   replicationcontroller.GetAttrs,
			Subresources: []definition.Subresource{scale.Subresource(replicationcontroller.Strategy)},
		},
		{
			Name: "ResourceQuota", ReturnsDeleted: true, ShortNames: []string{"quota"},
			Strategy: resourcequota.Strategy, Status: resourcequota.StatusStrategy,
		},
		{
			Name: "Service", ReturnsDeleted: true, ShortNames: []string{"svc"},
			Categories: []string{"all"}, Path: "services/specs", Strategy: service.Strategy, Status: service.StatusStrategy,
			Attributes: service.GetAttrs, Subresources: serviceConnections(options.Kubelets),
			Decorate: serviceip.Decorator(api.IPFamily(options.ServiceFamily)),
		},
	}
}

// EventKind returns the description of events, which the core group and events.k8s.io share.
func EventKind(timeToLive time.Duration) definition.Kind {
	return definition.Kind{
		Name: "Event", ShortNames: []string{"ev"},
		Strategy: event.Strategy, Attributes: event.GetAttrs, Storage: schema.GroupVersion{Version: "v1"},
		TimeToLive: func(runtime.Object) time.Duration { return timeToLive },
	}
}
