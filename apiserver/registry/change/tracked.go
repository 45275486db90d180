package change

import (
	"bytes"
	"fmt"
	"reflect"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Bounds of the work for managed fields. An object that exceeds any bound is not tracked.
const (
	// maxTracked is the number of entries of one map or list, and of names in all managed fields of an object. The library
	// for managed fields inserts each entry into a sorted slice: 200,000 keys of a ConfigMap take ten seconds of CPU,
	// 40,000 less than half a second.
	maxTracked = 40_000
	// maxTrackedObjects is the number of elements of one list of objects, which may be tracked one by one. Clients choose
	// their order: each element that sorts before all others moves them all, in three slices.
	maxTrackedObjects = 15_000
	// maxTrackedSteps is the number of steps from the root of an object to each of its fields, in total. The library takes
	// them all for each field: an object of 9,000 levels has 40 million, which take a second.
	maxTrackedSteps = 10_000_000
	// maxUpdaters is the number of managers that have updated an object. Servers keep ten; the library merges the fields
	// of the others one by one: 15,000 that a client sends take more than six seconds.
	maxUpdaters = 500
)

// errNotTracked is the error for a server-side apply that would have to track too many fields.
func errNotTracked() error {
	return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf(
		"a map, or the managed fields, have more than %d entries, a list of objects has more than %d, or the fields are "+
			"nested too deep, which server-side apply does not support", maxTracked, maxTrackedObjects))
}

// isTrackable reports whether the fields of an object may be tracked; it is true for an object that does not exist
// (nil). It visits each value of the object at most once and stops at the first bound exceeded: the estimate must be
// much cheaper than the work that it prevents.
func isTrackable(object runtime.Object) bool {
	if object == nil {
		return true
	}
	if accessor, err := meta.Accessor(object); err == nil {
		if managed := accessor.GetManagedFields(); namesIn(managed) > maxTracked || updaters(managed) > maxUpdaters {
			return false
		}
	}
	w := &trackedWork{}
	if content, ok := object.(runtime.Unstructured); ok {
		w.addContent(content.UnstructuredContent(), 1)
	} else {
		w.add(reflect.ValueOf(object), 1)
	}
	return !w.isTooMuch
}

// namesIn returns the approximate number of names in managed fields.
func namesIn(entries []metav1.ManagedFieldsEntry) int {
	names := 0
	for _, entry := range entries {
		if entry.FieldsV1 != nil {
			names += bytes.Count(entry.FieldsV1.GetRawBytes(), []byte(`":`))
		}
	}
	return names
}

// updaters returns the number of entries of managed fields that are not of server-side apply.
func updaters(entries []metav1.ManagedFieldsEntry) int {
	count := 0
	for _, entry := range entries {
		if entry.Operation != metav1.ManagedFieldsOperationApply {
			count++
		}
	}
	return count
}

// trackedWork estimates the work for the managed fields of an object.
type trackedWork struct {
	steps     int  // sum over all fields of the number of steps from the root
	isTooMuch bool // a bound is exceeded; the estimate stops
}

// addEntries adds the entries of a map or list at a depth. most is the maximum number of entries.
func (w *trackedWork) addEntries(entries, most, depth int) {
	w.steps += entries * depth
	w.isTooMuch = w.isTooMuch || entries > most || w.steps > maxTrackedSteps
}

// addContent adds a JSON value. Elements of a list that are objects may be tracked one by one.
func (w *trackedWork) addContent(value any, depth int) {
	switch value := value.(type) {
	case map[string]any:
		w.addEntries(len(value), maxTracked, depth)
		for _, item := range value {
			if w.isTooMuch {
				return
			}
			w.addContent(item, depth+1)
		}
	case []any:
		most := maxTracked
		if len(value) > 0 {
			if _, ok := value[0].(map[string]any); ok {
				most = maxTrackedObjects
			}
		}
		w.addEntries(len(value), most, depth)
		for _, item := range value {
			if w.isTooMuch {
				return
			}
			w.addContent(item, depth+1)
		}
	}
}

// add adds a value of a Go type. The depth counts structs, lists and maps, which are the levels of the JSON.
func (w *trackedWork) add(value reflect.Value, depth int) {
	switch value.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !value.IsNil() {
			w.add(value.Elem(), depth)
		}
	case reflect.Struct:
		for i := 0; i < value.NumField() && !w.isTooMuch; i++ {
			w.add(value.Field(i), depth+1)
		}
	case reflect.Slice, reflect.Map:
		w.addElements(value, depth)
	}
}

// addElements adds a list or map. Bytes are one value.
func (w *trackedWork) addElements(value reflect.Value, depth int) {
	element := value.Type().Elem().Kind()
	if element == reflect.Uint8 {
		return
	}
	most := maxTracked
	if element == reflect.Struct && value.Kind() == reflect.Slice {
		most = maxTrackedObjects
	}
	w.addEntries(value.Len(), most, depth)
	if element != reflect.Struct && element != reflect.Pointer && element != reflect.Slice && element != reflect.Map {
		return
	}
	if value.Kind() == reflect.Slice {
		for i := 0; i < value.Len() && !w.isTooMuch; i++ {
			w.add(value.Index(i), depth+1)
		}
		return
	}
	for entries := value.MapRange(); !w.isTooMuch && entries.Next(); {
		w.add(entries.Value(), depth+1)
	}
}
