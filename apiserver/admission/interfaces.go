package admission

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"

	"quorate.dev/apiserver/resource"
)

var (
	_ admission.ObjectInterfaces       = interfaces{}
	_ runtime.EquivalentResourceMapper = equivalents{}
)

// interfaces implements upstream's admission.ObjectInterfaces, with which upstream's plugins create, default and
// convert the objects of one write.
type interfaces struct {
	scheme  resource.Scheme
	catalog *resource.CatalogHolder
}

func (i interfaces) GetObjectCreater() runtime.ObjectCreater     { return i.scheme }
func (i interfaces) GetObjectTyper() runtime.ObjectTyper         { return i.scheme }
func (i interfaces) GetObjectDefaulter() runtime.ObjectDefaulter { return i.scheme }
func (i interfaces) GetObjectConvertor() runtime.ObjectConvertor { return i.scheme }

func (i interfaces) GetEquivalentResourceMapper() runtime.EquivalentResourceMapper {
	return equivalents{i.catalog.Current()}
}

// equivalents finds the resources that serve the same objects: the versions of a resource, and events of the core group
// and of events.k8s.io. kube-apiserver registers the same pairs when it installs its APIs. catalog is the catalog at
// the time of the write.
type equivalents struct{ catalog *resource.Catalog }

// EquivalentResourcesFor returns all resources that serve the same objects as the given one and have the subresource,
// including the given one.
func (e equivalents) EquivalentResourcesFor(
	of schema.GroupVersionResource, subresource string,
) []schema.GroupVersionResource {
	match, ok := e.catalog.Lookup(of.Group, of.Version, of.Resource)
	if !ok {
		return nil
	}
	var all []schema.GroupVersionResource
	for _, d := range e.catalog.Equivalent(match.Definition) {
		for _, v := range d.Versions {
			if v.Endpoints[subresource] != nil {
				all = append(all, schema.GroupVersionResource{Group: d.Group, Version: v.Name, Resource: d.Plural})
			}
		}
	}
	return all
}

// KindFor returns the kind of the bodies of a resource or subresource, or an empty kind if it is not served.
func (e equivalents) KindFor(of schema.GroupVersionResource, subresource string) schema.GroupVersionKind {
	match, ok := e.catalog.Lookup(of.Group, of.Version, of.Resource)
	if !ok || match.Version.Endpoints[subresource] == nil {
		return schema.GroupVersionKind{}
	}
	return match.Version.Endpoints[subresource].Kind
}
