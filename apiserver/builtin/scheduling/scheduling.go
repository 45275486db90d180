// Package scheduling defines the kinds of the API group scheduling.k8s.io.
package scheduling

import (
	"errors"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
	api "k8s.io/kubernetes/pkg/apis/scheduling"
	_ "k8s.io/kubernetes/pkg/apis/scheduling/install"
	schedulingv1 "k8s.io/kubernetes/pkg/apis/scheduling/v1"
	"k8s.io/kubernetes/pkg/registry/scheduling/compositepodgroup"
	"k8s.io/kubernetes/pkg/registry/scheduling/podgroup"
	"k8s.io/kubernetes/pkg/registry/scheduling/priorityclass"
	"k8s.io/kubernetes/pkg/registry/scheduling/workload"

	"quorate.dev/apiserver/builtin/definition"
	"quorate.dev/apiserver/resource"
)

// Definitions returns the kinds of the group.
func Definitions(builder *definition.Builder) []*resource.Definition {
	group := builder.Group("scheduling.k8s.io", "v1", "v1beta1", "v1alpha3")
	workloads := []string{"v1beta1", "v1alpha3"}
	beta := schema.GroupVersion{Group: "scheduling.k8s.io", Version: "v1beta1"}
	alpha := schema.GroupVersion{Group: "scheduling.k8s.io", Version: "v1alpha3"}
	pods, composite := podgroup.NewStrategy(), compositepodgroup.NewStrategy()
	return []*resource.Definition{
		group.Define(definition.Kind{
			Name: "PriorityClass", Versions: []string{"v1"}, ShortNames: []string{"pc"}, Strategy: priorityclass.Strategy,
			Delete: classDeletion{priorityclass.Strategy},
		}),
		group.Define(definition.Kind{
			Name: "PodGroup", Versions: workloads, Storage: beta,
			Strategy: pods, Status: podgroup.NewStatusStrategy(pods),
		}),
		group.Define(definition.Kind{
			Name: "Workload", Versions: workloads, Storage: beta, Strategy: workload.Strategy,
		}),
		group.Define(definition.Kind{
			Name: "CompositePodGroup", Versions: []string{"v1alpha3"}, Storage: alpha,
			Strategy: composite, Status: compositepodgroup.NewStatusStrategy(composite),
		}),
	}
}

var errSystemClass = errors.New("this is a system priority class and cannot be deleted")

// classDeletion prevents the deletion of system priority classes. It implements resource.DeletionGuard.
type classDeletion struct{ rest.RESTDeleteStrategy }

// CheckDeletion implements resource.DeletionGuard.
func (classDeletion) CheckDeletion(name string) error {
	if !slices.Contains(schedulingv1.SystemPriorityClassNames(), name) {
		return nil
	}
	return apierrors.NewForbidden(api.Resource("priorityclasses"), name, errSystemClass)
}
