package discovery

import (
	"cmp"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	discoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"quorate.dev/apiserver/aggregator/remote"
	"quorate.dev/apiserver/resource"
)

// documents are the discovery documents of one catalog.
type documents struct {
	catalog *resource.Catalog
	// remote are the documents of extension API servers that are merged.
	remote *remote.Set
	// legacy documents by path, without trailing slash.
	legacy map[string]*document
	// legacyInService is /api for clients in the Service range.
	legacyInService *document
	// aggregated documents of the core group and of all other groups.
	core, named *document
	coreTag     string
	namedTag    string
	groups      map[string]bool
}

// newDocuments builds the documents of a catalog and of extension API servers. They are encoded on the first request.
func newDocuments(catalog *resource.Catalog, set *remote.Set, addresses Addresses) (*documents, error) {
	docs := &documents{catalog: catalog, remote: set, legacy: map[string]*document{}, groups: map[string]bool{}}
	core, named := &discoveryv2.APIGroupDiscoveryList{}, &discoveryv2.APIGroupDiscoveryList{}
	var local []metav1.APIGroup
	versions := []string{}
	for _, g := range groups(catalog) {
		docs.groups[g.name] = true
		for _, gv := range g.versions {
			if catalog.BuiltIn(g.name) && !isBuiltin(gv) {
				continue // kube-apiserver responds with 404
			}
			doc := newDocument(resourceList(gv))
			doc.routed = isBuiltin(gv)
			docs.legacy[prefix(g.name, gv.Version)] = doc
		}
		if g.name == "" {
			for _, gv := range g.versions {
				versions = append(versions, gv.Version)
			}
			core.Items = append(core.Items, aggregate(g))
			continue
		}
		local = append(local, apiGroup(g))
		named.Items = append(named.Items, aggregate(g))
	}
	docs.addGroups(local, set)
	named.Items = aggregatedGroups(named.Items, set)
	everybody := metav1.ServerAddressByClientCIDR{ClientCIDR: "0.0.0.0/0", ServerAddress: addresses.Default}
	inService := metav1.ServerAddressByClientCIDR{ClientCIDR: addresses.ServiceRange.String(), ServerAddress: addresses.Service}
	docs.legacy["/api"] = newDocument(apiVersions(versions, everybody))
	docs.legacy["/api"].routed = true
	docs.legacyInService = newDocument(apiVersions(versions, everybody, inService))
	return docs, docs.tag(core, named)
}

// addGroups adds the legacy list of groups and the document of each. A group without APIService is served, but not
// listed.
func (d *documents) addGroups(local []metav1.APIGroup, set *remote.Set) {
	list := &metav1.APIGroupList{
		TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}, Groups: legacyGroups(local, set),
	}
	d.legacy["/apis"] = newDocument(list)
	for _, g := range slices.Concat(local, list.Groups) {
		g.TypeMeta = metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}
		d.legacy["/apis/"+g.Name] = newDocument(&g)
	}
}

func apiVersions(versions []string, addresses ...metav1.ServerAddressByClientCIDR) *metav1.APIVersions {
	return &metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: versions, ServerAddressByClientCIDRs: addresses}
}

// tag sets the aggregated documents with entity tags: hashes of their JSON without kind.
func (d *documents) tag(core, named *discoveryv2.APIGroupDiscoveryList) (err error) {
	if d.coreTag, err = entityTag(core); err != nil {
		return err
	}
	if d.namedTag, err = entityTag(named); err != nil {
		return err
	}
	for _, list := range []*discoveryv2.APIGroupDiscoveryList{core, named} {
		list.TypeMeta = metav1.TypeMeta{Kind: "APIGroupDiscoveryList", APIVersion: discoveryv2.SchemeGroupVersion.String()}
	}
	d.core, d.named = newDocument(core), newDocument(named)
	return nil
}

func entityTag(object runtime.Object) (string, error) {
	encoded, err := json.Marshal(object)
	if err != nil {
		return "", fmt.Errorf("encode discovery for its entity tag: %w", err)
	}
	return fmt.Sprintf("\"%X\"", sha512.Sum512(encoded)), nil
}

func prefix(group, version string) string {
	if group == "" {
		return "/api/" + version
	}
	return "/apis/" + group + "/" + version
}

func apiGroup(g group) metav1.APIGroup {
	legacy := metav1.APIGroup{Name: g.name}
	for _, gv := range g.versions {
		legacy.Versions = append(legacy.Versions, metav1.GroupVersionForDiscovery{
			GroupVersion: gv.Group + "/" + gv.Version, Version: gv.Version,
		})
	}
	legacy.PreferredVersion = legacy.Versions[0]
	return legacy
}

// resourceList returns the legacy document of a group version. The core group's has no apiVersion.
func resourceList(gv resource.GroupVersion) *metav1.APIResourceList {
	list := &metav1.APIResourceList{
		TypeMeta:     metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"},
		GroupVersion: schema.GroupVersion{Group: gv.Group, Version: gv.Version}.String(),
		APIResources: []metav1.APIResource{},
	}
	if gv.Group == "" {
		list.APIVersion = ""
	}
	for _, m := range gv.Resources {
		for _, e := range endpoints(m) {
			list.APIResources = append(list.APIResources, legacyResource(m, e))
		}
	}
	return list
}

func isBuiltin(gv resource.GroupVersion) bool {
	return !slices.ContainsFunc(gv.Resources, func(m resource.Match) bool { return m.Source == resource.Custom })
}

// endpoints returns the main endpoint, if served, and the subresources by name, or for custom resources with status
// first.
func endpoints(m resource.Match) []*resource.Endpoint {
	var ordered []*resource.Endpoint
	names := slices.Sorted(maps.Keys(m.Version.Endpoints))
	if m.Source == resource.Custom {
		slices.Reverse(names[1:])
	}
	for _, name := range names {
		if e := m.Version.Endpoints[name]; len(e.Verbs) > 0 {
			ordered = append(ordered, e)
		}
	}
	return ordered
}

func legacyResource(m resource.Match, e *resource.Endpoint) metav1.APIResource {
	legacy := metav1.APIResource{Name: m.Plural, Namespaced: m.Namespaced, Kind: e.Kind.Kind, Verbs: verbs(m, e)}
	if e.Kind.GroupVersion() != m.Version.Kind.GroupVersion() {
		legacy.Group, legacy.Version = e.Kind.Group, e.Kind.Version
	}
	if e.Subresource != "" {
		legacy.Name += "/" + e.Subresource
		return legacy
	}
	legacy.SingularName, legacy.ShortNames, legacy.Categories = m.Singular, m.ShortNames, m.Categories
	if slices.Contains(e.Verbs, "watch") {
		legacy.StorageVersionHash = storageVersionHash(m.StorageVersion.WithKind(m.Kind))
	}
	return legacy
}

// terminatingVerbs are the verbs of a custom resource whose definition is terminating.
var terminatingVerbs = []string{"delete", "deletecollection", "get", "list", "watch"}

// verbs returns the verbs in upstream's order: sorted, or for custom resources with create after patch.
func verbs(m resource.Match, e *resource.Endpoint) []string {
	if m.Source != resource.Custom {
		return e.Verbs
	}
	if m.Terminating && e.Subresource == "" {
		return terminatingVerbs
	}
	ordered := slices.Clone(e.Verbs)
	rank := func(verb string) string {
		if verb == "create" {
			return "patch "
		}
		return verb
	}
	slices.SortFunc(ordered, func(a, b string) int { return cmp.Compare(rank(a), rank(b)) })
	return ordered
}

// storageVersionHash changes when objects need to be migrated.
func storageVersionHash(kind schema.GroupVersionKind) string {
	sum := sha256.Sum256([]byte(kind.Group + "/" + kind.Version + "/" + kind.Kind))
	return base64.StdEncoding.EncodeToString(sum[:8])
}

func aggregate(g group) discoveryv2.APIGroupDiscovery {
	aggregated := discoveryv2.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: g.name}}
	for _, gv := range g.versions {
		version := discoveryv2.APIVersionDiscovery{Version: gv.Version, Freshness: discoveryv2.DiscoveryFreshnessCurrent}
		for _, m := range gv.Resources {
			version.Resources = append(version.Resources, aggregateResource(m))
		}
		aggregated.Versions = append(aggregated.Versions, version)
	}
	return aggregated
}

func aggregateResource(m resource.Match) discoveryv2.APIResourceDiscovery {
	aggregated := discoveryv2.APIResourceDiscovery{Resource: m.Plural, Scope: discoveryv2.ScopeCluster}
	if m.Namespaced {
		aggregated.Scope = discoveryv2.ScopeNamespace
	}
	for _, e := range endpoints(m) {
		if e.Subresource != "" {
			aggregated.Subresources = append(aggregated.Subresources, discoveryv2.APISubresourceDiscovery{
				Subresource: e.Subresource, ResponseKind: responseKind(m, e), Verbs: verbs(m, e),
			})
			continue
		}
		aggregated.ResponseKind, aggregated.Verbs = responseKind(m, e), verbs(m, e)
		aggregated.SingularResource, aggregated.ShortNames, aggregated.Categories = m.Singular, m.ShortNames, m.Categories
	}
	return aggregated
}

// responseKind omits group and version if they equal the document's, except for custom resources.
func responseKind(m resource.Match, e *resource.Endpoint) *metav1.GroupVersionKind {
	if m.Source != resource.Custom && e.Kind.GroupVersion() == m.Version.Kind.GroupVersion() {
		return &metav1.GroupVersionKind{Kind: e.Kind.Kind}
	}
	kind := metav1.GroupVersionKind(e.Kind)
	return &kind
}
