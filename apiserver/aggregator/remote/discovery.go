package remote

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	discoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/discovery"
)

// decoder decodes discovery documents of all versions and formats.
type decoder struct {
	runtime.Decoder
	large chan struct{} // has an element for each large document in memory
}

func newDecoder() (decoder, error) {
	scheme := runtime.NewScheme()
	if err := discoveryv2.AddToScheme(scheme); err != nil {
		return decoder{}, fmt.Errorf("register aggregated discovery: %w", err)
	}
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	return decoder{serializer.NewCodecFactory(scheme).UniversalDecoder(), make(chan struct{}, maxLarge)}, nil
}

// serverDiscovery is the result of the discovery of one server.
type serverDiscovery struct {
	// versions has the documents of all group versions that were found.
	versions map[schema.GroupVersion]discoveryv2.APIVersionDiscovery
	// failed has the group versions whose documents could not be downloaded.
	failed map[schema.GroupVersion]error
	// tag is the entity tag of the aggregated document, empty for a server without such a document.
	tag string
}

// errUnchanged is returned for a document that the caller has already.
var errUnchanged = errors.New("the document has not changed")

const aggregatedList = "APIGroupDiscoveryList"

// discover downloads the discovery of a server: the aggregated document or, if the server has none, the legacy
// document of each wanted group version. It returns errUnchanged if the aggregated document still has the given
// entity tag.
func (d decoder) discover(
	ctx context.Context, backend Backend, wanted []schema.GroupVersion, tag string,
) (serverDiscovery, error) {
	r, err := document{"/apis", discoveryTimeout, maxDiscovery, d.large}.get(ctx, backend, map[string]string{
		"Accept": discovery.AcceptV2, "If-None-Match": tag,
	})
	switch {
	case err != nil:
		return serverDiscovery{}, err
	case r.status == http.StatusNotModified && tag != "":
		return serverDiscovery{}, errUnchanged
	case r.status == http.StatusServiceUnavailable:
		return serverDiscovery{}, fmt.Errorf("/apis: status %d", r.status)
	case r.status == http.StatusOK && isAggregated(r.header.Get("Content-Type")):
		defer r.release()
		versions, err := d.aggregated(r.body)
		return serverDiscovery{versions: versions, tag: r.header.Get("Etag")}, err
	}
	r.release()
	found := serverDiscovery{
		versions: map[schema.GroupVersion]discoveryv2.APIVersionDiscovery{}, failed: map[schema.GroupVersion]error{},
	}
	ctx, cancel := context.WithTimeout(ctx, legacyTimeout)
	defer cancel()
	for _, gv := range wanted {
		if version, err := d.legacy(ctx, backend, gv); err != nil {
			found.failed[gv] = err
		} else {
			found.versions[gv] = version
		}
	}
	return found, nil
}

// isAggregated reports whether a response is an aggregated document. A server without aggregated discovery of version
// v2 responds with a list of groups.
func isAggregated(contentType string) bool {
	matches, err := discovery.ContentTypeIsGVK(contentType, discoveryv2.SchemeGroupVersion.WithKind(aggregatedList))
	return err == nil && matches
}

// aggregated decodes an aggregated document into its group versions.
func (d decoder) aggregated(body []byte) (map[schema.GroupVersion]discoveryv2.APIVersionDiscovery, error) {
	list := &discoveryv2.APIGroupDiscoveryList{}
	if err := runtime.DecodeInto(d, body, list); err != nil {
		return nil, fmt.Errorf("decode aggregated discovery: %w", err)
	}
	versions := map[schema.GroupVersion]discoveryv2.APIVersionDiscovery{}
	for _, group := range list.Items {
		for _, version := range group.Versions {
			setResponseKinds(version.Resources)
			versions[schema.GroupVersion{Group: group.Name, Version: version.Version}] = version
		}
	}
	return versions, nil
}

// setResponseKinds replaces missing kinds by empty ones: some releases of client-go panic on nil.
func setResponseKinds(resources []discoveryv2.APIResourceDiscovery) {
	for i := range resources {
		if resources[i].ResponseKind == nil {
			resources[i].ResponseKind = &metav1.GroupVersionKind{}
		}
		for j := range resources[i].Subresources {
			if resources[i].Subresources[j].ResponseKind == nil {
				resources[i].Subresources[j].ResponseKind = &metav1.GroupVersionKind{}
			}
		}
	}
}

// legacy downloads the legacy document of a group version, and returns it in the format of aggregated discovery.
func (d decoder) legacy(
	ctx context.Context, backend Backend, gv schema.GroupVersion,
) (discoveryv2.APIVersionDiscovery, error) {
	path := "/apis/" + gv.Group + "/" + gv.Version
	if gv.Group == "" {
		path = "/api/" + gv.Version
	}
	r, err := document{path, discoveryTimeout, maxDiscovery, d.large}.get(ctx, backend, map[string]string{
		"Accept": runtime.ContentTypeJSON,
	})
	if err != nil {
		return discoveryv2.APIVersionDiscovery{}, err
	}
	defer r.release()
	if r.status != http.StatusOK {
		return discoveryv2.APIVersionDiscovery{}, fmt.Errorf("%s: status %d", path, r.status)
	}
	list := &metav1.APIResourceList{}
	if err := runtime.DecodeInto(d, r.body, list); err != nil {
		return discoveryv2.APIVersionDiscovery{}, fmt.Errorf("decode %s: %w", path, err)
	}
	resources, err := aggregateLegacy(list.APIResources)
	if err != nil {
		return discoveryv2.APIVersionDiscovery{}, fmt.Errorf("%s: %w", path, err)
	}
	return discoveryv2.APIVersionDiscovery{Version: gv.Version, Resources: resources}, nil
}

// aggregateLegacy converts legacy resources like upstream's ConvertGroupVersionIntoToDiscovery: a subresource whose
// resource is missing gets a resource without verbs.
func aggregateLegacy(list []metav1.APIResource) ([]discoveryv2.APIResourceDiscovery, error) {
	var resources []discoveryv2.APIResourceDiscovery
	index := map[string]int{}
	for _, r := range list {
		if strings.Contains(r.Name, "/") {
			continue
		}
		index[r.Name] = len(resources)
		resources = append(resources, discoveryv2.APIResourceDiscovery{
			Resource: r.Name, Scope: scope(r), ResponseKind: kindOf(r), Verbs: r.Verbs, ShortNames: r.ShortNames,
			Categories: r.Categories, SingularResource: r.SingularName,
		})
	}
	for _, r := range list {
		name, subresource, ok := strings.Cut(r.Name, "/")
		if !ok {
			continue
		}
		i, ok := index[name]
		if !ok {
			i = len(resources)
			index[name] = i
			resources = append(resources, discoveryv2.APIResourceDiscovery{
				Resource: name, Scope: scope(r), ResponseKind: &metav1.GroupVersionKind{},
			})
		}
		parent := &resources[i]
		if parent.Scope != scope(r) {
			return nil, fmt.Errorf("%s and %s have different scopes", name, r.Name)
		}
		kind := &metav1.GroupVersionKind{}
		if r.Kind != "" {
			kind = kindOf(r)
		}
		parent.Subresources = append(parent.Subresources, discoveryv2.APISubresourceDiscovery{
			Subresource: subresource, Verbs: r.Verbs, ResponseKind: kind,
		})
	}
	return resources, nil
}

func scope(r metav1.APIResource) discoveryv2.ResourceScope {
	if r.Namespaced {
		return discoveryv2.ScopeNamespace
	}
	return discoveryv2.ScopeCluster
}

func kindOf(r metav1.APIResource) *metav1.GroupVersionKind {
	return &metav1.GroupVersionKind{Group: r.Group, Version: r.Version, Kind: r.Kind}
}
