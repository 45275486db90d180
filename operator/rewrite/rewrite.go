// Package rewrite writes stored objects without a change, so that they are encrypted with the current key.
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

// pageSize is the number of objects in a list.
const pageSize = 250

// Position is the progress of a rewrite.
type Position struct {
	Resource string // "group/version/resource" being rewritten; empty: none was begun
	Continue string
	Objects  int64
}

// Rewriter rewrites the objects of one API.
type Rewriter struct {
	Config   *rest.Config
	Patterns []string // of resources, as in EncryptionConfiguration
}

// Run rewrites objects, starting at a position, until all are rewritten or ctx ends. It returns the next position,
// even with an error. Rewriting an object twice is harmless.
func (r Rewriter) Run(ctx context.Context, from Position, until time.Time, now func() time.Time) (at Position, done bool, err error) {
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
				return at, false, fmt.Errorf("rewriting %s: %w", resource.GroupResource(), err)
			}
		}
		at.Resource, at.Continue = after(resource), ""
	}
}

// Positions are names of resources, or names with a suffix that orders them after the resource itself.
func name(r schema.GroupVersionResource) string  { return r.Group + "/" + r.Version + "/" + r.Resource }
func after(r schema.GroupVersionResource) string { return name(r) + "!" }

// next returns the first resource that is not before a position. The resources are sorted.
func next(resources []schema.GroupVersionResource, position string) (schema.GroupVersionResource, bool) {
	for _, resource := range resources {
		if name(resource) >= position {
			return resource, true
		}
	}
	return schema.GroupVersionResource{}, false
}

// page rewrites one page of objects and reports whether it was the last one of the resource.
func page(ctx context.Context, client metadata.Getter, at *Position) (last bool, err error) {
	list, err := client.List(ctx, metav1.ListOptions{Limit: pageSize, Continue: at.Continue})
	if status := apierrors.APIStatus(nil); apierrors.IsResourceExpired(err) && errors.As(err, &status) {
		at.Continue = status.Status().ListMeta.Continue // the server continues with the present state; empty: restart
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

// resources returns the sorted resources that match the patterns, in their preferred versions.
func (r Rewriter) resources() ([]schema.GroupVersionResource, error) {
	client, err := discovery.NewDiscoveryClientForConfig(r.Config)
	if err != nil {
		return nil, err
	}
	lists, err := client.ServerPreferredResources()
	if err != nil && !extensionsUnavailable(err) {
		return nil, fmt.Errorf("discovering resources: %w", err)
	}
	var all []schema.GroupVersionResource
	for _, list := range lists {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return nil, err
		}
		for _, one := range list.APIResources {
			verbs := []string(one.Verbs)
			stored := !strings.Contains(one.Name, "/") && slices.Contains(verbs, "list") && slices.Contains(verbs, "patch")
			if stored && matches(r.Patterns, schema.GroupResource{Group: version.Group, Resource: one.Name}) {
				all = append(all, version.WithResource(one.Name))
			}
		}
	}
	slices.SortFunc(all, func(a, b schema.GroupVersionResource) int { return strings.Compare(name(a), name(b)) })
	return all, nil
}

// extensionsUnavailable reports whether only groups of extension API servers could not be discovered. Their objects are
// not stored in this etcd.
func extensionsUnavailable(err error) bool {
	failed := &discovery.ErrGroupDiscoveryFailed{}
	return errors.As(err, &failed)
}

func matches(patterns []string, resource schema.GroupResource) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool {
		return pattern == "*.*" || pattern == resource.String() || pattern == "*."+resource.Group ||
			pattern == resource.Resource+"." && resource.Group == "" || pattern == "events" && resource == eventsResource
	})
}

// eventsResource are the same stored objects as the core group's events.
var eventsResource = schema.GroupResource{Group: "events.k8s.io", Resource: "events"}
