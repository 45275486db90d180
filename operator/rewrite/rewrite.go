// Package rewrite makes an API server encrypt stored objects with its current key. A key in an EncryptionConfiguration
// may be removed only when no stored value is encrypted with it, so package atrest rewrites all affected objects before
// it drops a key.
//
// The package sends an empty patch for each object. Like kube-apiserver, the API server does not write a patch without
// a change to etcd, unless the stored value was encrypted with a key other than the first key of the configuration (the
// transformer reports the value as stale). Objects that are already encrypted with the current key are therefore read,
// but not written.
//
// A rewrite may take longer than one reconciliation, and the operator may restart before it ends. Position is its whole
// progress: the caller stores it after each call of Run. A rewrite that continues from an earlier position patches some
// objects twice, which is harmless. An object that is created while the rewrite runs is encrypted with the current key,
// because all API servers write with that key before the rewrite begins.
package rewrite

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
)

// pageSize is the limit of objects in one LIST request.
const pageSize = 250

// Position is the progress of a rewrite. The zero value is the beginning.
type Position struct {
	Resource string // "group/version/resource", with the suffix "!" once it is rewritten; "" at the beginning
	Continue string
	Objects  int64
}

// Rewriter rewrites the objects of one cluster.
type Rewriter struct {
	Config   *rest.Config
	Patterns []string // names of resources as in an EncryptionConfiguration, such as "secrets" and "*.apps"
}

// Run rewrites objects from a position until all are rewritten (done), a request fails, ctx is cancelled, or now() is
// after until. The time is checked between pages, so that Run always makes progress. Run returns the position that it
// has reached, also when it returns an error; the caller passes it to the next call.
func (r Rewriter) Run(
	ctx context.Context, from Position, until time.Time, now func() time.Time,
) (at Position, done bool, err error) {
	resources, err := r.resources()
	if err != nil {
		return from, false, err
	}
	client, err := metadata.NewForConfig(r.Config)
	if err != nil {
		return from, false, err
	}
	for at = from; ; {
		resource, found := next(resources, at.Resource)
		if !found {
			return at, true, nil
		}
		for finished := false; !finished; {
			if now().After(until) {
				return at, false, nil
			}
			if finished, err = page(ctx, client.Resource(resource), &at); err != nil {
				return at, false, fmt.Errorf("rewrite %s: %w", resource.GroupResource(), err)
			}
		}
		at.Resource, at.Continue = after(resource), ""
	}
}

// name and after return positions in the order of resource names: name(r) is the position before the objects of r,
// after(r) the position after all objects of r and before every resource with a greater name.
func name(r schema.GroupVersionResource) string  { return r.Group + "/" + r.Version + "/" + r.Resource }
func after(r schema.GroupVersionResource) string { return name(r) + "!" }

// next returns the first resource whose name is not less than a position. The resources are sorted by name. A resource
// that was rewritten but no longer exists is skipped, and so is one that was created since at an earlier position.
func next(resources []schema.GroupVersionResource, position string) (schema.GroupVersionResource, bool) {
	for _, resource := range resources {
		if name(resource) >= position {
			return resource, true
		}
	}
	return schema.GroupVersionResource{}, false
}

// page rewrites one page of objects, advances the position behind it, and reports whether the page was the last page of
// its resource.
func page(ctx context.Context, client metadata.Getter, at *Position) (last bool, err error) {
	list, err := client.List(ctx, metav1.ListOptions{Limit: pageSize, Continue: at.Continue})
	if status := apierrors.APIStatus(nil); apierrors.IsResourceExpired(err) && errors.As(err, &status) {
		// The token in the error continues the list at the current revision. "" restarts the list.
		at.Continue = status.Status().ListMeta.Continue
		return false, nil
	}
	if err != nil {
		return false, err
	}
	for i := range list.Items {
		object := &list.Items[i]
		// An empty patch is a write if the stored value is not encrypted with the current key.
		scoped := metadata.ResourceInterface(client)
		if object.Namespace != "" {
			scoped = client.Namespace(object.Namespace)
		}
		_, err := scoped.Patch(ctx, object.Name, types.MergePatchType, []byte("{}"), metav1.PatchOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return false, fmt.Errorf("%s/%s: %w", object.Namespace, object.Name, err)
		}
	}
	at.Objects += int64(len(list.Items))
	at.Continue = list.Continue
	return list.Continue == "", nil
}

// resources returns the stored resources that match the patterns, in the preferred version of each group, sorted by
// name.
func (r Rewriter) resources() ([]schema.GroupVersionResource, error) {
	client, err := discovery.NewDiscoveryClientForConfig(r.Config)
	if err != nil {
		return nil, err
	}
	lists, err := client.ServerPreferredResources()
	if err != nil && !extensionsUnavailable(err) {
		return nil, fmt.Errorf("discover resources: %w", err)
	}
	var all []schema.GroupVersionResource
	for _, list := range lists {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return nil, err
		}
		for _, resource := range list.APIResources {
			verbs := []string(resource.Verbs)
			stored := !strings.Contains(resource.Name, "/") && slices.Contains(verbs, "list") && slices.Contains(verbs, "patch")
			if stored && matches(r.Patterns, schema.GroupResource{Group: version.Group, Resource: resource.Name}) {
				all = append(all, version.WithResource(resource.Name))
			}
		}
	}
	slices.SortFunc(all, func(a, b schema.GroupVersionResource) int { return strings.Compare(name(a), name(b)) })
	return all, nil
}

// extensionsUnavailable reports whether discovery failed only for groups of extension API servers, which do not
// respond. Their objects are not stored in the etcd of this cluster.
func extensionsUnavailable(err error) bool {
	failed := &discovery.ErrGroupDiscoveryFailed{}
	return errors.As(err, &failed)
}

// matches reports whether any pattern matches a resource, by the rules of EncryptionConfiguration: "*.*" matches all
// resources, "*.group" the resources of a group, "*." the resources of the core group.
func matches(patterns []string, resource schema.GroupResource) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		return pattern == "*.*" || pattern == resource.String() || pattern == "*."+resource.Group ||
			pattern == resource.Resource+"." && resource.Group == "" || pattern == "events" && resource == eventsResource
	})
}

// eventsResource identifies events in the group events.k8s.io. They are the same stored objects as the events of the
// core group, so the pattern "events" matches both.
var eventsResource = schema.GroupResource{Group: "events.k8s.io", Resource: "events"}
