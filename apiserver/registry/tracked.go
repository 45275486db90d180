package registry

import (
	"bytes"
	"fmt"
	"reflect"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// maxTracked is the number of entries of one map or list, and of names in all managed fields of an object, up to which fields
// are tracked. The library for managed fields inserts each entry into a sorted slice: 200,000 keys of a ConfigMap take ten
// seconds of CPU, 40,000 less than half a second.
const maxTracked = 40_000

// errNotTracked is the error for a server-side apply that would have to track too many fields.
func errNotTracked() error {
	return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf(
		"a map or list, or the managed fields, have more than %d entries, which server-side apply does not support", maxTracked))
}

// isTrackable reports whether the fields of an object may be tracked. nil is no object.
func isTrackable(object runtime.Object) bool {
	if object == nil {
		return true
	}
	if accessor, err := meta.Accessor(object); err == nil && namesIn(accessor.GetManagedFields()) > maxTracked {
		return false
	}
	if content, ok := object.(runtime.Unstructured); ok {
		return !hasLongContent(content.UnstructuredContent())
	}
	return !hasLong(reflect.ValueOf(object))
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

// hasLongContent reports whether a map or list inside a JSON value has more than maxTracked entries.
func hasLongContent(value any) bool {
	switch value := value.(type) {
	case map[string]any:
		if len(value) > maxTracked {
			return true
		}
		for _, item := range value {
			if hasLongContent(item) {
				return true
			}
		}
	case []any:
		if len(value) > maxTracked {
			return true
		}
		for _, item := range value {
			if hasLongContent(item) {
				return true
			}
		}
	}
	return false
}

// hasLong reports whether a map or list inside a value has more than maxTracked entries. Bytes are one value.
func hasLong(value reflect.Value) bool {
	switch value.Kind() {
	case reflect.Pointer, reflect.Interface:
		return !value.IsNil() && hasLong(value.Elem())
	case reflect.Struct:
		for i := range value.NumField() {
			if hasLong(value.Field(i)) {
				return true
			}
		}
	case reflect.Slice, reflect.Map:
		return hasLongElements(value)
	}
	return false
}

// hasLongElements is hasLong for a list or map.
func hasLongElements(value reflect.Value) bool {
	element := value.Type().Elem().Kind()
	if element == reflect.Uint8 {
		return false
	}
	if value.Len() > maxTracked {
		return true
	}
	if element != reflect.Struct && element != reflect.Pointer && element != reflect.Slice && element != reflect.Map {
		return false
	}
	if value.Kind() == reflect.Slice {
		for i := range value.Len() {
			if hasLong(value.Index(i)) {
				return true
			}
		}
		return false
	}
	for entries := value.MapRange(); entries.Next(); {
		if hasLong(entries.Value()) {
			return true
		}
	}
	return false
}
