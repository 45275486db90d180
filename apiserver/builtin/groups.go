package builtin

import (
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	_ "k8s.io/kubernetes/pkg/apis/apiserverinternal/install"
	_ "k8s.io/kubernetes/pkg/apis/autoscaling/install"
	_ "k8s.io/kubernetes/pkg/apis/coordination/install"
	_ "k8s.io/kubernetes/pkg/apis/events/install"
	_ "k8s.io/kubernetes/pkg/apis/flowcontrol/install"
	_ "k8s.io/kubernetes/pkg/apis/networking/install"
	_ "k8s.io/kubernetes/pkg/apis/node/install"
	_ "k8s.io/kubernetes/pkg/apis/policy/install"
	_ "k8s.io/kubernetes/pkg/apis/storagemigration/install"
	"k8s.io/kubernetes/pkg/registry/apiserverinternal/storageversion"
	"k8s.io/kubernetes/pkg/registry/autoscaling/horizontalpodautoscaler"
	"k8s.io/kubernetes/pkg/registry/coordination/lease"
	"k8s.io/kubernetes/pkg/registry/coordination/leasecandidate"
	"k8s.io/kubernetes/pkg/registry/flowcontrol/flowschema"
	"k8s.io/kubernetes/pkg/registry/flowcontrol/prioritylevelconfiguration"
	"k8s.io/kubernetes/pkg/registry/networking/ingress"
	"k8s.io/kubernetes/pkg/registry/networking/ingressclass"
	"k8s.io/kubernetes/pkg/registry/networking/ipaddress"
	"k8s.io/kubernetes/pkg/registry/networking/networkpolicy"
	"k8s.io/kubernetes/pkg/registry/networking/servicecidr"
	"k8s.io/kubernetes/pkg/registry/node/runtimeclass"
	"k8s.io/kubernetes/pkg/registry/policy/poddisruptionbudget"
	"k8s.io/kubernetes/pkg/registry/storagemigration/storagemigration"

	"quorate.dev/apiserver/builtin/core"
	"quorate.dev/apiserver/builtin/definition"
	"quorate.dev/apiserver/resource"
)

// The API groups in this file use upstream's strategies and need no other code.

func autoscalingGroup(builder *definition.Builder) []*resource.Definition {
	group := builder.Group("autoscaling", "v2", "v1")
	return []*resource.Definition{
		group.Define(definition.Kind{
			Name: "HorizontalPodAutoscaler", ShortNames: []string{"hpa"}, Categories: []string{"all"},
			Strategy: horizontalpodautoscaler.Strategy, Status: horizontalpodautoscaler.StatusStrategy, InternalMetadata: true,
		}),
	}
}

func coordinationGroup(builder *definition.Builder) []*resource.Definition {
	group := builder.Group("coordination.k8s.io", "v1", "v1beta1", "v1alpha2")
	return []*resource.Definition{
		group.Define(definition.Kind{Name: "Lease", Versions: []string{"v1"}, Strategy: lease.Strategy}),
		group.Define(definition.Kind{
			Name: "LeaseCandidate", Versions: []string{"v1beta1", "v1alpha2"},
			Storage:  schema.GroupVersion{Group: "coordination.k8s.io", Version: "v1beta1"},
			Strategy: leasecandidate.Strategy, Attributes: leasecandidate.GetAttrs,
		}),
	}
}

func eventsGroup(builder *definition.Builder, timeToLive time.Duration) []*resource.Definition {
	group := builder.Group("events.k8s.io", "v1")
	return []*resource.Definition{group.Define(core.EventKind(timeToLive))}
}

func flowControlGroup(builder *definition.Builder) []*resource.Definition {
	group := builder.Group("flowcontrol.apiserver.k8s.io", "v1")
	return []*resource.Definition{
		group.Define(definition.Kind{
			Name: "FlowSchema", Strategy: flowschema.Strategy, Status: flowschema.StatusStrategy, PrintsList: true,
		}),
		group.Define(definition.Kind{
			Name:     "PriorityLevelConfiguration",
			Strategy: prioritylevelconfiguration.Strategy, Status: prioritylevelconfiguration.StatusStrategy,
		}),
	}
}

func apiServerInternalGroup(builder *definition.Builder) []*resource.Definition {
	group := builder.Group("internal.apiserver.k8s.io", "v1alpha1")
	return []*resource.Definition{
		group.Define(definition.Kind{
			Name: "StorageVersion", Strategy: storageversion.Strategy, Status: storageversion.StatusStrategy,
		}),
	}
}

func networkingGroup(builder *definition.Builder) []*resource.Definition {
	group := builder.Group("networking.k8s.io", "v1", "v1beta1")
	stable := []string{"v1"}
	return []*resource.Definition{
		group.Define(definition.Kind{
			Name: "Ingress", Versions: stable, ShortNames: []string{"ing"},
			Strategy: ingress.Strategy, Status: ingress.StatusStrategy, Path: "ingress",
		}),
		group.Define(definition.Kind{Name: "IngressClass", Versions: stable, Strategy: ingressclass.Strategy}),
		group.Define(definition.Kind{Name: "IPAddress", ShortNames: []string{"ip"}, Strategy: ipaddress.Strategy}),
		group.Define(definition.Kind{
			Name: "NetworkPolicy", Versions: stable, ShortNames: []string{"netpol"}, Strategy: networkpolicy.Strategy,
		}),
		group.Define(definition.Kind{
			Name: "ServiceCIDR", Strategy: servicecidr.Strategy, Status: servicecidr.StatusStrategy,
		}),
	}
}

func nodeGroup(builder *definition.Builder) []*resource.Definition {
	group := builder.Group("node.k8s.io", "v1")
	return []*resource.Definition{
		group.Define(definition.Kind{Name: "RuntimeClass", Strategy: runtimeclass.Strategy}),
	}
}

func policyGroup(builder *definition.Builder) []*resource.Definition {
	group := builder.Group("policy", "v1")
	return []*resource.Definition{
		group.Define(definition.Kind{
			Name: "PodDisruptionBudget", ShortNames: []string{"pdb"},
			Strategy: poddisruptionbudget.Strategy, Status: poddisruptionbudget.StatusStrategy,
		}),
	}
}

func storageMigrationGroup(builder *definition.Builder) []*resource.Definition {
	group := builder.Group("storagemigration.k8s.io", "v1", "v1beta1")
	return []*resource.Definition{
		group.Define(definition.Kind{
			Name:     "StorageVersionMigration",
			Storage:  schema.GroupVersion{Group: "storagemigration.k8s.io", Version: "v1beta1"},
			Strategy: storagemigration.Strategy, Status: storagemigration.StatusStrategy,
		}),
	}
}
