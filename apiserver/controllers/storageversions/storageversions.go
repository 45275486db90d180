// Package storageversions records in which version this replica stores each built-in resource, in StorageVersions of
// internal.apiserver.k8s.io. It is the counterpart of k8s.io/apiserver/pkg/storageversion, and is used with the feature
// gate StorageVersionAPI only.
//
// A Recorder has one Resource for each collection in etcd. Run writes the entry of this replica into the StorageVersion
// of each resource, which has the entries of all replicas. Until that has succeeded, PermitRequest and PermitOwn return
// errors for writes of the resource, so that no object is stored in a version that is not recorded: a storage migration
// that starts after an upgrade relies on the records. The entries of replicas that no longer exist are removed by the
// storage-version-garbage-collector of kube-controller-manager, which compares them with the identity Leases.
package storageversions

import (
	"cmp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"quorate.dev/apiserver/resource"
)

// Resource is a stored resource with the versions that are recorded for it.
type Resource struct {
	schema.GroupResource
	// Aliases are all resources with the same stored objects, including the resource itself: events are in two groups.
	Aliases []schema.GroupResource
	// Encoding is the group and version in which objects are stored.
	Encoding string
	// Decodable are the groups and versions in which stored objects can be read.
	Decodable []string
	// Served are the groups and versions in which the resource is served.
	Served []string
}

// Name returns the name of the StorageVersion of the resource.
func (r Resource) Name() string { return cmp.Or(r.Group, "core") + "." + r.Resource }

// Resources returns the stored resources of definitions. decodable returns the versions that the scheme of a kind has.
// Of several resources with the same stored objects, the first by group and name represents all, as in
// kube-apiserver.
func Resources(
	definitions []*resource.Definition, decodable func(schema.GroupKind) []schema.GroupVersion,
) []Resource {
	byPath := map[string][]*resource.Definition{}
	for _, d := range definitions {
		if isStored(d) {
			byPath[d.StoragePath] = append(byPath[d.StoragePath], d)
		}
	}
	var all []Resource
	for _, sharing := range byPath {
		all = append(all, resourceOf(sharing, decodable))
	}
	slices.SortFunc(all, func(a, b Resource) int { return compare(a.GroupResource, b.GroupResource) })
	return all
}

// isStored reports whether a resource is in etcd: only such resources can be watched.
func isStored(d *resource.Definition) bool {
	return slices.ContainsFunc(d.Versions, func(v *resource.Version) bool {
		return slices.Contains(v.Endpoints[""].Verbs, "watch")
	})
}

// resourceOf returns the resource of definitions with the same stored objects.
func resourceOf(
	sharing []*resource.Definition, decodable func(schema.GroupKind) []schema.GroupVersion,
) Resource {
	first := slices.MinFunc(sharing, func(a, b *resource.Definition) int {
		return compare(a.GroupResource(), b.GroupResource())
	})
	r := Resource{GroupResource: first.GroupResource(), Encoding: first.StorageVersion.String()}
	for _, version := range decodable(schema.GroupKind{Group: first.Group, Kind: first.Kind}) {
		r.Decodable = append(r.Decodable, version.String())
	}
	for _, d := range sharing {
		r.Aliases = append(r.Aliases, d.GroupResource())
		for _, v := range d.Versions {
			version := schema.GroupVersion{Group: d.Group, Version: v.Name}.String()
			if d == first {
				r.Served = append(r.Served, version)
			}
			if !slices.Contains(r.Decodable, version) {
				r.Decodable = append(r.Decodable, version)
			}
		}
	}
	return r
}

func compare(a, b schema.GroupResource) int {
	return cmp.Or(strings.Compare(a.Group, b.Group), strings.Compare(a.Resource, b.Resource))
}
