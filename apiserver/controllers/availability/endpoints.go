package availability

import (
	"sync"

	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"

	"quorate.dev/apiserver/watchcache"
)

// sliceIndex has the names of the EndpointSlices of each Service. It is built from labels only, so that an
// EndpointSlice is decoded only if an APIService needs it.
type sliceIndex struct {
	mu        sync.Mutex
	byService map[types.NamespacedName]sets.Set[string] // Invariant: no set is empty.
}

func newSliceIndex() *sliceIndex {
	return &sliceIndex{byService: map[types.NamespacedName]sets.Set[string]{}}
}

// observe updates the index after a change of a slice. It returns the Services that the slice belonged to before and
// belongs to now.
func (x *sliceIndex) observe(before, after *watchcache.Entry) []types.NamespacedName {
	var concerned []types.NamespacedName
	x.mu.Lock()
	defer x.mu.Unlock()
	if service, ok := serviceOfSlice(before); ok {
		concerned = append(concerned, service)
		if x.byService[service].Delete(before.Name()); len(x.byService[service]) == 0 {
			delete(x.byService, service)
		}
	}
	if service, ok := serviceOfSlice(after); ok {
		concerned = append(concerned, service)
		if x.byService[service] == nil {
			x.byService[service] = sets.Set[string]{}
		}
		x.byService[service].Insert(after.Name())
	}
	return concerned
}

func serviceOfSlice(entry *watchcache.Entry) (types.NamespacedName, bool) {
	if entry == nil {
		return types.NamespacedName{}, false
	}
	name := entry.Labels()[discoveryv1.LabelServiceName]
	return types.NamespacedName{Namespace: entry.Namespace(), Name: name}, name != ""
}

// get returns the slices of a Service.
func (x *sliceIndex) get(
	all discoverylisters.EndpointSliceLister, namespace, service string,
) ([]*discoveryv1.EndpointSlice, error) {
	x.mu.Lock()
	names := x.byService[types.NamespacedName{Namespace: namespace, Name: service}].UnsortedList()
	x.mu.Unlock()
	var found []*discoveryv1.EndpointSlice
	for _, name := range names {
		slice, err := all.EndpointSlices(namespace).Get(name)
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			return nil, err
		default:
			found = append(found, slice)
		}
	}
	return found, nil
}
