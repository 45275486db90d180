// Package priority has kube-apiserver's priorities of built-in API groups and versions. Discovery and APIServices use
// them.
package priority

import "k8s.io/apimachinery/pkg/runtime/schema"

// Priority is the priority of a group, and the priority of a version within the group. Higher priorities come first.
type Priority struct{ Group, Version int32 }

// Custom is the priority of custom resources.
var Custom = Priority{Group: 1000, Version: 100}

// registry is the priority of the group apiregistration.k8s.io, which has no APIService.
const registry = 20000

// group is the priority of a built-in group, and the priorities of its versions.
type group struct {
	priority int32
	versions map[string]int32
}

var groups = map[string]group{
	"":                             {18000, map[string]int32{"v1": 1}},
	"apps":                         {17800, map[string]int32{"v1": 15}},
	"events.k8s.io":                {17750, map[string]int32{"v1": 15, "v1beta1": 5}},
	"authentication.k8s.io":        {17700, map[string]int32{"v1": 15, "v1beta1": 9, "v1alpha1": 1}},
	"authorization.k8s.io":         {17600, map[string]int32{"v1": 15}},
	"autoscaling":                  {17500, map[string]int32{"v2": 30, "v1": 15}},
	"batch":                        {17400, map[string]int32{"v1": 15}},
	"certificates.k8s.io":          {17300, map[string]int32{"v1": 15, "v1beta1": 9, "v1alpha1": 1}},
	"networking.k8s.io":            {17200, map[string]int32{"v1": 15, "v1beta1": 9}},
	"policy":                       {17100, map[string]int32{"v1": 15}},
	"rbac.authorization.k8s.io":    {17000, map[string]int32{"v1": 15}},
	"storage.k8s.io":               {16800, map[string]int32{"v1": 15, "v1beta1": 9, "v1alpha1": 1}},
	"admissionregistration.k8s.io": {16700, map[string]int32{"v1": 15, "v1beta1": 12, "v1alpha1": 9}},
	"apiextensions.k8s.io":         {16700, map[string]int32{"v1": 15}},
	"scheduling.k8s.io":            {16600, map[string]int32{"v1": 15, "v1beta1": 9, "v1alpha3": 3}},
	"coordination.k8s.io":          {16500, map[string]int32{"v1": 15, "v1beta1": 13, "v1alpha2": 12}},
	"node.k8s.io":                  {16300, map[string]int32{"v1": 15, "v1beta1": 9, "v1alpha1": 1}},
	"discovery.k8s.io":             {16200, map[string]int32{"v1": 15, "v1beta1": 12}},
	"resource.k8s.io":              {16200, map[string]int32{"v1": 21, "v1beta2": 15, "v1beta1": 9, "v1alpha3": 1}},
	"flowcontrol.apiserver.k8s.io": {
		16100, map[string]int32{"v1": 21, "v1beta3": 18, "v1beta2": 15, "v1beta1": 12, "v1alpha1": 9},
	},
	"internal.apiserver.k8s.io": {16000, map[string]int32{"v1alpha1": 9}},
	"storagemigration.k8s.io":   {15800, map[string]int32{"v1": 15, "v1beta1": 9}},
	"lifecycle.k8s.io":          {15700, map[string]int32{"v1alpha1": 1}},
}

// BuiltIn returns the priority of a built-in group version, and reports whether gv is built-in.
func BuiltIn(gv schema.GroupVersion) (Priority, bool) {
	known := groups[gv.Group]
	version, ok := known.versions[gv.Version]
	return Priority{Group: known.priority, Version: version}, ok
}

// OfGroup returns the priority of a group, built-in or not.
func OfGroup(name string) int32 {
	if name == "apiregistration.k8s.io" {
		return registry
	}
	if known, ok := groups[name]; ok {
		return known.priority
	}
	return Custom.Group
}
