package crd

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	clientscheme "k8s.io/client-go/kubernetes/scheme"

	"quorate.dev/apiserver/storage"
)

// Orphans are stored objects of a custom resource whose definition does not exist. They cannot be read or deleted
// through the API. Former releases left them behind when a definition was deleted before it was Established.
type Orphans struct {
	schema.GroupResource
	Objects int64
}

// afterSlash is the byte after the slash in byte order. A range that starts at a path with afterSlash instead of the
// final slash skips all keys below the path.
const afterSlash = string('/' + 1)

// FindOrphans returns the orphans in a store. It reads one key of each collection and skips the rest of the collection,
// then counts the objects of custom resources whose definition is missing. It takes a few requests to etcd for each
// collection, however many objects the collections have, and must not run on the path of a request.
func FindOrphans(ctx context.Context, store *storage.Store) (found []Orphans, err error) {
	for from := ""; ; {
		page, err := store.ListKeys(ctx, "", storage.ListOptions{From: from, Limit: 1})
		if err != nil || len(page.Values) == 0 {
			return found, err
		}
		resource, collection := customResourceAt(page.Values[0].Path)
		from = collection + afterSlash
		if resource.Empty() {
			continue
		}
		count, err := countOrphans(ctx, store, resource, collection+"/")
		if err != nil {
			return found, err
		}
		if count > 0 {
			found = append(found, Orphans{GroupResource: resource, Objects: count})
		}
	}
}

// countOrphans returns the number of objects of a custom resource, 0 if its definition exists. The objects are counted
// first: a definition is deleted only after its objects.
func countOrphans(
	ctx context.Context, store *storage.Store, resource schema.GroupResource, prefix string,
) (int64, error) {
	count, err := store.Count(ctx, prefix, "", 0)
	if err != nil {
		return 0, err
	}
	definition := "apiextensions.k8s.io/customresourcedefinitions/" + resource.String()
	page, err := store.ListKeys(ctx, definition, storage.ListOptions{Limit: 1})
	if err != nil {
		return 0, fmt.Errorf("look up the definition of %s: %w", resource, err)
	}
	if len(page.Values) > 0 && page.Values[0].Path == definition {
		return 0, nil
	}
	return count, nil
}

// builtInGroups are groups with a domain that client-go does not register.
var builtInGroups = []string{"apiextensions.k8s.io", "apiregistration.k8s.io"}

// customResourceAt returns the custom resource that is stored under a path, and the path of its collection. For other
// paths, the resource is empty. The storage path of a custom resource begins with its group, which contains a dot. The
// storage path of a built-in kind begins with the name of the resource, except in the groups that the function knows.
func customResourceAt(path string) (resource schema.GroupResource, collection string) {
	parts := strings.SplitN(path, "/", 3)
	if !strings.Contains(parts[0], ".") || len(parts) < 3 {
		return resource, parts[0]
	}
	collection = parts[0] + "/" + parts[1]
	if clientscheme.Scheme.IsGroupRegistered(parts[0]) || slices.Contains(builtInGroups, parts[0]) {
		return resource, collection
	}
	return schema.GroupResource{Group: parts[0], Resource: parts[1]}, collection
}
