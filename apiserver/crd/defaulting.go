package crd

import (
	"fmt"

	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"quorate.dev/apiserver/request"
)

const (
	// maxObject is the maximum size in bytes of a custom resource as JSON. etcd's client does not send requests above 2
	// MiB, so that no larger object can be stored.
	maxObject = request.MaxBody

	// maxAdded is the maximum number of bytes, as JSON, that the defaults of a schema may add to an object that a
	// client sends. maxAddedToStored is the maximum for a stored object, whose definition may have got defaults after
	// the object was written.
	maxAdded         = maxObject
	maxAddedToStored = 8 * maxObject
)

// errTooLarge returns the error for an object that is too large to be stored after its defaults have been added.
func errTooLarge() error {
	return apierrors.NewRequestEntityTooLargeError(fmt.Sprintf(
		"the object with its defaults is larger than the limit of %d bytes", maxObject))
}

// defaulter sets the defaults of a schema until they have added budget bytes of JSON. Without this limit, 150 KB of
// empty objects that get fifty defaults each become gigabytes.
type defaulter struct{ budget int }

// exceeded reports whether the budget was used up, so that defaults are missing.
func (d *defaulter) exceeded() bool { return d.budget < 0 }

// apply is upstream's defaulting.Default with a budget. It changes value in place. Defaults are applied from the root
// down, so that a default of an object gets the defaults of its properties too. Like upstream, it replaces null by the
// default where the schema forbids null.
func (d *defaulter) apply(value any, s *structuralschema.Structural) {
	if s == nil || d.exceeded() {
		return
	}
	switch value := value.(type) {
	case map[string]any:
		d.applyProperties(value, s)
		for k := range value {
			if property, ok := s.Properties[k]; ok {
				d.apply(value[k], &property)
			} else if s.AdditionalProperties != nil {
				if isForbiddenNull(value[k], s.AdditionalProperties.Structural) {
					value[k] = d.copy(0, s.AdditionalProperties.Structural.Default.Object)
				}
				d.apply(value[k], s.AdditionalProperties.Structural)
			}
		}
	case []any:
		for i := range value {
			if isForbiddenNull(value[i], s.Items) {
				value[i] = d.copy(0, s.Items.Default.Object)
			}
			d.apply(value[i], s.Items)
		}
	}
}

// applyProperties sets the missing properties of an object, and replaces null where the schema forbids it. Properties
// without a default are left to pruning and validation.
func (d *defaulter) applyProperties(object map[string]any, s *structuralschema.Structural) {
	for k, property := range s.Properties {
		if property.Default.Object == nil {
			continue
		}
		if value, ok := object[k]; ok && !isForbiddenNull(value, &property) {
			continue
		}
		value := d.copy(len(k)+len(`"":`), property.Default.Object)
		if d.exceeded() {
			return
		}
		object[k] = value
	}
}

// copy returns a copy of a default, and subtracts its size and the size of its key from the budget. It returns nil if
// the budget is exceeded.
func (d *defaulter) copy(keySize int, value any) any {
	if d.budget -= keySize + minimumSize(value); d.exceeded() {
		return nil
	}
	return runtime.DeepCopyJSONValue(value)
}

// isForbiddenNull reports whether a value is null and its schema does not permit null.
func isForbiddenNull(value any, s *structuralschema.Structural) bool {
	return value == nil && s != nil && !s.Nullable
}

// minimumSize returns a lower bound of the bytes of a value as JSON: it ignores escapes, and counts a number as one
// byte.
func minimumSize(value any) int {
	switch value := value.(type) {
	case string:
		return len(value) + len(`""`)
	case bool:
		return len("true")
	case nil:
		return len("null")
	case map[string]any:
		size := len("{}")
		for k, item := range value {
			size += len(k) + len(`"":`) + minimumSize(item)
		}
		return size
	case []any:
		size := len("[]")
		for _, item := range value {
			size += minimumSize(item)
		}
		return size
	}
	return 1
}

// setDefaults sets the defaults of the object's version, in place. It reports whether they add at most maximum bytes;
// if not, some are missing. An object of another kind, or of a version that the CRD does not have, gets no defaults.
func (c *custom) setDefaults(object *unstructured.Unstructured, maximum int) bool {
	v := c.versionOf(object)
	if v == nil {
		return true
	}
	structural, err := v.structural()
	if err != nil {
		return true // validation reports the error
	}
	d := &defaulter{budget: maximum}
	d.apply(object.Object, structural)
	return !d.exceeded()
}

// Default implements runtime.ObjectDefaulter with the defaults of the object's version. If an object becomes too large,
// it keeps the defaults that have been set, and Store rejects it because of its size.
func (c *custom) Default(in runtime.Object) {
	if object, ok := in.(*unstructured.Unstructured); ok {
		c.setDefaults(object, maxAdded)
	}
}
