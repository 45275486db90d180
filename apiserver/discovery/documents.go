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
	"strings"
	"sync"

	discoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"quorate.dev/apiserver/aggregator/remote"
	"quorate.dev/apiserver/deflate"
	"quorate.dev/apiserver/resource"
)

// documents are the discovery documents of a catalog, merged with the documents of extension API servers.
type documents struct {
	catalog *resource.Catalog
	remote  *remote.Set
	// groups has the groups of the catalog in the order of discovery.
	groups []*groupDocuments
	byName map[string]*groupDocuments
	// list is the legacy document /apis with all groups.
	list *document
	// merged has the legacy documents of the groups that APIServices change, by name.
	merged map[string]*document
	// core is the legacy document /api. coreInService is the same document for clients in the Service range.
	core, coreInService *document
	// aggregatedCore is the aggregated document of the core group. aggregated is the aggregated document of all other
	// groups.
	aggregatedCore, aggregated *aggregatedDocument
}

// newDocuments builds the documents of a catalog and of extension API servers. They are encoded on the first request.
// The documents of groups that have not changed are taken from earlier, which may be nil.
func newDocuments(catalog *resource.Catalog, set *remote.Set, addresses Addresses, earlier *documents) *documents {
	docs := &documents{catalog: catalog, remote: set, byName: make(map[string]*groupDocuments, len(catalog.Groups()))}
	for _, g := range catalog.Groups() {
		if len(g.Versions) == 0 {
			continue
		}
		of := earlier.of(g)
		docs.groups = append(docs.groups, of)
		docs.byName[g.Name] = of
	}
	slices.SortFunc(docs.groups, func(a, b *groupDocuments) int { return compareGroups(a.group, b.group) })
	named := docs.groups
	if len(named) > 0 && named[0].name == "" {
		named = named[1:]
	}
	docs.setGroups(named)
	docs.setCore(addresses)
	docs.aggregatedCore = newAggregated(parts(docs.groups[:len(docs.groups)-len(named)], nil))
	docs.aggregated = newAggregated(parts(named, set))
	return docs
}

// of returns the documents of a group: d's own if the group has not changed, otherwise new documents. d may be nil.
func (d *documents) of(g *resource.Group) *groupDocuments {
	if d != nil {
		if known := d.byName[g.Name]; known != nil && known.source == g {
			return known
		}
	}
	return newGroupDocuments(g)
}

func (d *documents) setCore(addresses Addresses) {
	versions := []string{}
	if core := d.byName[""]; core != nil {
		for _, gv := range core.versions {
			versions = append(versions, gv.Version)
		}
	}
	all := metav1.ServerAddressByClientCIDR{ClientCIDR: "0.0.0.0/0", ServerAddress: addresses.Default}
	inService := metav1.ServerAddressByClientCIDR{
		ClientCIDR: addresses.ServiceRange.String(), ServerAddress: addresses.Service,
	}
	d.core = newDocument(func() runtime.Object { return apiVersions(versions, all) })
	d.core.routed = true
	d.coreInService = newDocument(func() runtime.Object { return apiVersions(versions, all, inService) })
}

// legacy returns the legacy document at a path without trailing slash, or nil if there is none.
func (d *documents) legacy(path string) *document {
	switch path {
	case "/api":
		return d.core
	case "/apis":
		return d.list
	}
	name, version := "", ""
	if rest, ok := strings.CutPrefix(path, "/api/"); ok {
		version = rest
	} else if rest, ok := strings.CutPrefix(path, "/apis/"); ok {
		name, version, _ = strings.Cut(rest, "/")
		if name == "" {
			return nil
		}
	}
	if merged := d.merged[name]; merged != nil && version == "" {
		return merged
	}
	group := d.byName[name]
	if group == nil {
		return nil
	}
	return group.legacy[version]
}

// groupDocuments are the discovery documents of one group.
type groupDocuments struct {
	group
	source *resource.Group
	// legacy has the legacy documents by version; "" is the document of the group.
	legacy map[string]*document
	// encoded returns the group's part of the aggregated document as JSON.
	encoded func() (encodedGroup, error)
}

type encodedGroup struct {
	json []byte
	// compressed is json as a part of a gzip stream.
	compressed deflate.Part
	hash       [sha512.Size]byte
}

func newGroupDocuments(of *resource.Group) *groupDocuments {
	docs := &groupDocuments{group: newGroup(of), source: of, legacy: make(map[string]*document, len(of.Versions)+1)}
	docs.encoded = sync.OnceValues(docs.encode)
	if docs.name != "" {
		docs.legacy[""] = newDocument(func() runtime.Object {
			legacy := apiGroup(docs.group)
			legacy.TypeMeta = metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}
			return &legacy
		})
	}
	for _, gv := range docs.versions {
		if of.BuiltIn && !isBuiltin(gv) {
			// kube-apiserver responds with 404 for such versions.
			continue
		}
		doc := newDocument(func() runtime.Object { return resourceList(gv) })
		doc.routed, doc.custom = isBuiltin(gv), !isBuiltin(gv)
		docs.legacy[gv.Version] = doc
	}
	return docs
}

func (g *groupDocuments) encode() (encodedGroup, error) { return encodeGroup(aggregate(g.group)) }

func encodeGroup(g discoveryv2.APIGroupDiscovery) (encodedGroup, error) {
	encoded, err := json.Marshal(g)
	if err != nil {
		return encodedGroup{}, fmt.Errorf("encode discovery of %s: %w", g.Name, err)
	}
	compressed, err := deflate.Compress(encoded)
	return encodedGroup{json: encoded, compressed: compressed, hash: sha512.Sum512(encoded)}, err
}

// setGroups sets the legacy list of groups and the documents of the groups that APIServices change. A group of this
// server without APIService is served but not listed.
func (d *documents) setGroups(named []*groupDocuments) {
	d.list = newDocument(func() runtime.Object {
		return &metav1.APIGroupList{
			TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}, Groups: legacyGroups(named, d.remote),
		}
	})
	d.merged = map[string]*document{}
	changed := changedGroups(d.remote)
	var affected []*groupDocuments
	for name := range changed {
		if g := d.byName[name]; g != nil {
			affected = append(affected, g)
		}
	}
	if len(changed) > 0 {
		for _, g := range legacyGroups(affected, d.remote) {
			g.TypeMeta = metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}
			d.merged[g.Name] = newDocument(func() runtime.Object { return &g })
		}
	}
}

func apiVersions(versions []string, addresses ...metav1.ServerAddressByClientCIDR) *metav1.APIVersions {
	return &metav1.APIVersions{
		TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: versions, ServerAddressByClientCIDRs: addresses,
	}
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

// resourceList returns the legacy document of a group version. The document of the core group has no apiVersion.
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

// endpoints returns the endpoints in the order of discovery: the resource itself if it is served, then the
// subresources, sorted by name; for custom resources status precedes scale.
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
	if slices.Contains(e.Verbs, "watch") && publishesStorageVersion(m) {
		legacy.StorageVersionHash = storageVersionHash(m.StorageVersion.WithKind(m.Kind))
	}
	return legacy
}

// publishesStorageVersion reports whether discovery has the hash of the storage version of a resource. As in
// kube-apiserver, custom resources have the hash whatever the feature gate is, if their storage version is served.
func publishesStorageVersion(m resource.Match) bool {
	if m.Source == resource.Custom {
		return m.Definition.Version(m.StorageVersion.Version) != nil
	}
	return utilfeature.DefaultFeatureGate.Enabled(features.StorageVersionHash)
}

// terminatingVerbs are the verbs of a custom resource whose CustomResourceDefinition is terminating.
var terminatingVerbs = []string{"delete", "deletecollection", "get", "list", "watch"}

// verbs returns the verbs in upstream's order: sorted, but with create after patch for custom resources.
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

// storageVersionHash returns a hash that changes when the storage version of a resource changes, after which its
// objects need migration.
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

// responseKind returns the kind of an endpoint. Except for custom resources, it omits a group and version that equal
// the document's.
func responseKind(m resource.Match, e *resource.Endpoint) *metav1.GroupVersionKind {
	if m.Source != resource.Custom && e.Kind.GroupVersion() == m.Version.Kind.GroupVersion() {
		return &metav1.GroupVersionKind{Kind: e.Kind.Kind}
	}
	kind := metav1.GroupVersionKind(e.Kind)
	return &kind
}
