package row

import (
	"reflect"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
)

// mapTimes calls f for each time in an object that is not zero, and stores the result in its place. It returns false if
// there are times that it cannot replace. In the content of unstructured objects, times are strings as in RFC 3339.
func mapTimes(object runtime.Object, f func(time.Time) time.Time) bool {
	if untyped, ok := object.(runtime.Unstructured); ok {
		mapStrings(untyped.UnstructuredContent(), f)
		return true
	}
	return mapValues(reflect.ValueOf(object), f)
}

// mapValues does for a typed value what mapTimes does for an object. It skips fields that are not exported, which
// printers cannot read.
func mapValues(v reflect.Value, f func(time.Time) time.Time) bool {
	complete := true
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		return v.IsNil() || mapValues(v.Elem(), f)
	case reflect.Slice, reflect.Array:
		if isPlain(v.Type().Elem()) {
			return true
		}
		for i := range v.Len() {
			complete = mapValues(v.Index(i), f) && complete
		}
	case reflect.Map:
		if isPlain(v.Type().Elem()) {
			return true
		}
		for values := v.MapRange(); values.Next(); {
			complete = mapValues(values.Value(), f) && complete
		}
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			return mapTime(v, f)
		}
		for i := range v.NumField() {
			if field := v.Type().Field(i); field.IsExported() && !isPlain(field.Type) {
				complete = mapValues(v.Field(i), f) && complete
			}
		}
	}
	return complete
}

// isPlain reports whether values of a type are single values that are not times.
func isPlain(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Pointer, reflect.Interface, reflect.Slice, reflect.Array, reflect.Map, reflect.Struct:
		return false
	}
	return true
}

// mapTime replaces a time by the result of f. It returns false for a time in a map, which cannot be replaced.
func mapTime(v reflect.Value, f func(time.Time) time.Time) bool {
	t, _ := v.Interface().(time.Time)
	if t.IsZero() {
		return true
	}
	if !v.CanSet() {
		return false
	}
	v.Set(reflect.ValueOf(f(t)))
	return true
}

// mapStrings calls f for each time in the content of an unstructured object, and stores the result in its place.
func mapStrings(value any, f func(time.Time) time.Time) {
	switch content := value.(type) {
	case map[string]any:
		for key, field := range content {
			if replaced, ok := mapString(field, f); ok {
				content[key] = replaced
			} else {
				mapStrings(field, f)
			}
		}
	case []any:
		for i, item := range content {
			if replaced, ok := mapString(item, f); ok {
				content[i] = replaced
			} else {
				mapStrings(item, f)
			}
		}
	}
}

// mapString returns the string that replaces a string with a time. It returns false for all other values.
func mapString(value any, f func(time.Time) time.Time) (string, bool) {
	text, ok := value.(string)
	if !ok || len(text) < len("2006-01-02T3:04:05Z") || text[4] != '-' { // time.Parse accepts hours of one digit
		return "", false
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil || t.IsZero() {
		return "", false
	}
	return f(t).Format(time.RFC3339Nano), true
}
