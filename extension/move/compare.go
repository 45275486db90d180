package move

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// assigned are the fields of metadata that the destination of a move assigns, so that copies differ in them.
// docs/move.md lists the same fields.
var assigned = map[Direction][]string{
	ToExtension: {"resourceVersion", "selfLink"},
	ToHost: {
		"resourceVersion", "selfLink", "uid", "creationTimestamp", "generation", "managedFields", "deletionTimestamp",
		"deletionGracePeriodSeconds",
	},
}

// comparable returns the content of an object that must be equal in a source and its copy.
func comparable(direction Direction, object *unstructured.Unstructured) map[string]any {
	content := object.DeepCopy().Object
	delete(content, "apiVersion") // the source may be in another version than the copy
	if metadata, ok := content["metadata"].(map[string]any); ok {
		for _, field := range assigned[direction] {
			delete(metadata, field)
		}
	}
	return content
}

// digest identifies the content of an object, so that a comparison does not need all objects in memory.
type digest struct {
	content  [sha256.Size]byte
	uid      types.UID
	revision string
	// managed is set if the move is a field manager of the object, which it is until the second write of writeToHost.
	managed bool
}

func digestOf(direction Direction, object *unstructured.Unstructured) (digest, error) {
	encoded, err := json.Marshal(comparable(direction, object))
	if err != nil {
		return digest{}, fmt.Errorf("encode %s: %w", key(object), err)
	}
	return digest{
		content: sha256.Sum256(encoded), uid: object.GetUID(), revision: object.GetResourceVersion(),
		managed: isManaged(object),
	}, nil
}

// isManaged reports whether the move is a field manager of an object.
func isManaged(object *unstructured.Unstructured) bool {
	return slices.ContainsFunc(object.GetManagedFields(), func(entry metav1.ManagedFieldsEntry) bool {
		return entry.Manager == manager
	})
}

// key returns the namespace and name of an object as namespace/name, or only the name without a namespace.
func key(object *unstructured.Unstructured) string {
	return strings.TrimPrefix(object.GetNamespace()+"/"+object.GetName(), "/")
}

// maxDifferences bounds the number of fields that an error names.
const maxDifferences = 5

// differences returns the paths of the fields in which a copy differs from its source.
func differences(direction Direction, source, copied *unstructured.Unstructured) []string {
	found := differing("", comparable(direction, source), comparable(direction, copied))
	slices.Sort(found)
	return found[:min(len(found), maxDifferences)]
}

func differing(path string, a, b any) []string {
	first, isMap := a.(map[string]any)
	second, both := b.(map[string]any)
	if !isMap || !both {
		if reflect.DeepEqual(a, b) {
			return nil
		}
		return []string{strings.TrimPrefix(path, ".")}
	}
	var found []string
	for name, value := range first {
		found = append(found, differing(path+"."+name, value, second[name])...)
	}
	for name := range second {
		if _, ok := first[name]; !ok {
			found = append(found, strings.TrimPrefix(path+"."+name, "."))
		}
	}
	return found
}

// forHost returns the object to create in the host for an object of the extension server, in accessVersion.
func forHost(source *unstructured.Unstructured, group string) *unstructured.Unstructured {
	created := source.DeepCopy()
	if metadata, ok := created.Object["metadata"].(map[string]any); ok {
		for _, field := range assigned[ToHost] {
			delete(metadata, field)
		}
	}
	created.SetAPIVersion(group + "/" + accessVersion)
	return created
}
