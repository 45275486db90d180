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

// interfaces is what upstream's plugins convert the objects of one write with.
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

// equivalents finds resources that share their objects, in the catalog of one moment: the versions of a resource, and
// events of both groups. kube-apiserver registers the same pairs when it installs its APIs.
type equivalents struct{ catalog *resource.Catalog }

// EquivalentResourcesFor returns the resources that serve the same objects and have the subresource, the argument among
// them.
func (e equivalents) EquivalentResourcesFor(of schema.GroupVersionResource, subresource string) []schema.GroupVersionResource {
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

// KindFor returns the kind of a resource's or subresource's bodies, or an empty one if it is not served.
func (e equivalents) KindFor(of schema.GroupVersionResource, subresource string) schema.GroupVersionKind {
	match, ok := e.catalog.Lookup(of.Group, of.Version, of.Resource)
	if !ok || match.Version.Endpoints[subresource] == nil {
		return schema.GroupVersionKind{}
	}
	return match.Version.Endpoints[subresource].Kind
}
