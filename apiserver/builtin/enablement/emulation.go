package enablement

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"
	apiversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/component-base/compatibility"
	"k8s.io/component-base/featuregate"
	baseversion "k8s.io/component-base/version"
)

// Emulation selects the APIs of a Kubernetes version.
type Emulation struct {
	// Version is the effective version; nil means this server's own version.
	Version compatibility.EffectiveVersion
	// Gates are the feature gates; nil means that all are enabled. A version or resource that --runtime-config enables by
	// name, and that a gate disables, is not served, and is no error.
	Gates featuregate.FeatureGate
	// ForwardCompatible also serves versions of a served resource that were introduced later, except alpha versions.
	ForwardCompatible bool
	// RuntimeConfigForwardCompatible also serves APIs that were introduced later if --runtime-config enables them by
	// name.
	RuntimeConfigForwardCompatible bool
	// ServeRemoved also serves APIs that the emulated version removes, but none that an earlier version removed.
	ServeRemoved bool
}

// version returns the emulated version.
func (e Emulation) version() *version.Version {
	if e.Version == nil {
		return version.MustParse(baseversion.DefaultKubeBinaryVersion)
	}
	return e.Version.EmulationVersion()
}

// Emulate disables the APIs that were removed in the emulated version or before, and the APIs that were introduced
// after it, as removeDeletedKinds and removeUnintroducedKinds do upstream. It returns kube-apiserver's error if
// --runtime-config enables by name an API that was introduced later. schemes must contain all groups and versions.
func (a APIs) Emulate(emulation Emulation, schemes ...*runtime.Scheme) (APIs, error) {
	e := emulator{Emulation: emulation, apis: a, emulated: map[schema.GroupVersionResource]bool{}}
	for _, scheme := range schemes {
		groups := map[string][]schema.GroupVersion{}
		for _, gv := range scheme.PrioritizedVersionsAllGroups() {
			groups[gv.Group] = append(groups[gv.Group], gv)
		}
		for _, group := range slices.Sorted(maps.Keys(groups)) {
			versions := groups[group]
			slices.SortFunc(versions, func(a, b schema.GroupVersion) int {
				return apiversion.CompareKubeAwareVersionStrings(a.Version, b.Version)
			})
			if err := e.group(scheme, versions); err != nil {
				return APIs{}, err
			}
		}
	}
	a.emulated = e.emulated
	return a, nil
}

type emulator struct {
	Emulation
	apis     APIs
	emulated map[schema.GroupVersionResource]bool
}

var alphaVersion = regexp.MustCompile(`^v\d+alpha\d+$`)

// group decides which resources of one group are served. versions are sorted by priority, lowest first.
func (e emulator) group(scheme *runtime.Scheme, versions []schema.GroupVersion) error {
	// lower has the resources that a lower version serves.
	lower := map[string]bool{}
	// anyLower is set if a lower version is enabled as a whole.
	anyLower := false
	for _, gv := range versions {
		kinds := lifecycles(scheme, gv)
		alpha := alphaVersion.MatchString(gv.Version)
		present, served := 0, 0
		for _, resource := range slices.Sorted(maps.Keys(kinds)) {
			gvr := gv.WithResource(resource)
			if !e.offers(gvr.GroupResource()) {
				continue
			}
			on := e.apis.enabled(gvr)
			if e.ForwardCompatible && !on && !e.apis.named(gvr) && (anyLower || lower[resource]) {
				on = true
				e.emulated[gvr] = true
			}
			if e.removes(kinds[resource].removed) {
				e.emulated[gvr] = false
				continue
			}
			present++
			if !on {
				continue
			}
			keep, err := e.keeps(gvr, kinds[resource].introduced, lower[resource])
			if err != nil {
				return err
			}
			if !keep {
				e.emulated[gvr] = false
				continue
			}
			served++
			lower[resource] = lower[resource] || !alpha
		}
		if served == 0 && present > 0 && e.apis.versions[gv] {
			return fmt.Errorf("cannot enable version %s in runtime-config because all the resources have been introduced after "+
				"the current version %s. Consider setting --runtime-config-emulation-forward-compatible=true", gv, e.version())
		}
		anyLower = anyLower || !alpha && e.apis.enabled(gv.WithResource(""))
	}
	return nil
}

// named reports whether --runtime-config decides about a resource by name.
func (a APIs) named(gvr schema.GroupVersionResource) bool {
	_, version := a.versions[gvr.GroupVersion()]
	_, resource := a.resources[gvr]
	return version || resource
}

// removes reports whether the emulated version or an earlier one removed a resource. removed is nil for resources that
// are not removed.
func (e emulator) removes(removed *version.Version) bool {
	return removed != nil && !removed.GreaterThan(e.version()) && !(e.ServeRemoved && removed.EqualTo(e.version()))
}

// keeps reports whether an enabled resource is served. lower is set if a lower version of the resource is served.
func (e emulator) keeps(gvr schema.GroupVersionResource, introduced *version.Version, lower bool) (bool, error) {
	emulated := e.version()
	switch {
	case emulated.AtLeast(introduced), e.ForwardCompatible && lower:
		return true, nil
	case e.RuntimeConfigForwardCompatible && (e.apis.resources[gvr] || e.apis.versions[gvr.GroupVersion()]):
		return true, nil
	case e.apis.resources[gvr]:
		return false, fmt.Errorf("cannot enable resource %s in runtime-config because it is introduced at %s after the "+
			"current version %s. Consider setting --runtime-config-emulation-forward-compatible=true", gvr, introduced, emulated)
	}
	return false, nil
}

// lifecycle has the Kubernetes versions that introduced and removed a kind. removed is nil for kinds that are not
// removed.
type lifecycle struct {
	introduced, removed *version.Version
}

// lifecycles returns the lifecycle of each resource of a group version that has one.
func lifecycles(scheme *runtime.Scheme, gv schema.GroupVersion) map[string]lifecycle {
	found := map[string]lifecycle{}
	for kind := range scheme.KnownTypes(gv) {
		object, err := scheme.New(gv.WithKind(kind))
		if err != nil || strings.HasSuffix(kind, "List") || strings.HasSuffix(kind, "Options") {
			continue
		}
		if introduced, ok := Introduced(object); ok {
			resource, _ := meta.UnsafeGuessKindToResource(gv.WithKind(kind))
			found[resource.Resource] = lifecycle{introduced, removal(object)}
		}
	}
	return found
}

// removal returns the Kubernetes version that removes the kind of an object, or nil if there is none.
func removal(object runtime.Object) *version.Version {
	kind, ok := object.(interface {
		APILifecycleRemoved() (major, minor int)
	})
	if !ok {
		return nil
	}
	major, minor := kind.APILifecycleRemoved()
	return version.MajorMinor(uint(major), uint(minor))
}

// Introduced returns the Kubernetes version that introduced the kind of an object, if the object has one.
func Introduced(object runtime.Object) (*version.Version, bool) {
	kind, ok := object.(interface {
		APILifecycleIntroduced() (major, minor int)
	})
	if !ok {
		return nil, false
	}
	major, minor := kind.APILifecycleIntroduced()
	return version.MajorMinor(uint(major), uint(minor)), true
}
