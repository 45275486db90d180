package change

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// deep returns an object whose maps are nested.
func deep(levels int) *unstructured.Unstructured {
	var value any = int64(1)
	for range levels {
		value = map[string]any{"a": value}
	}
	return &unstructured.Unstructured{Object: map[string]any{"spec": value}}
}

// list returns an object with a list of equal elements.
func list(length int, element any) *unstructured.Unstructured {
	elements := make([]any, length)
	for i := range elements {
		elements[i] = element
	}
	return &unstructured.Unstructured{Object: map[string]any{"spec": elements}}
}

// updatedBy returns an object that many managers have updated.
func updatedBy(managers int) *corev1.Pod {
	pod := &corev1.Pod{}
	for range managers {
		pod.ManagedFields = append(pod.ManagedFields, metav1.ManagedFieldsEntry{
			Operation: metav1.ManagedFieldsOperationUpdate,
		})
	}
	return pod
}

// TestTrackable checks the bounds of the work for managed fields.
func TestTrackable(t *testing.T) {
	fields := &metav1.FieldsV1{Raw: []byte("{" + strings.TrimSuffix(strings.Repeat(`"f:a":{},`, maxTracked+1), ",") + "}")}
	pod := func(containers int) runtime.Object {
		return &corev1.Pod{Spec: corev1.PodSpec{Containers: make([]corev1.Container, containers)}}
	}
	for name, test := range map[string]struct {
		object runtime.Object
		want   bool
	}{
		"none":                 {nil, true},
		"deep":                 {deep(2_000), true},
		"too deep":             {deep(9_000), false},
		"long list of values":  {list(maxTracked, int64(1)), true},
		"too long":             {list(maxTracked+1, int64(1)), false},
		"long list of objects": {list(maxTrackedObjects, map[string]any{"a": int64(1)}), true},
		"too many objects":     {list(maxTrackedObjects+1, map[string]any{"a": int64(1)}), false},
		"containers":           {pod(maxTrackedObjects), true},
		"too many containers":  {pod(maxTrackedObjects + 1), false},
		"large bytes":          {&corev1.Secret{Data: map[string][]byte{"a": make([]byte, maxTracked+1)}}, true},
		"too many names": {
			&corev1.Pod{ObjectMeta: metav1.ObjectMeta{ManagedFields: []metav1.ManagedFieldsEntry{{FieldsV1: fields}}}}, false,
		},
		"updaters":              {updatedBy(maxUpdaters), true},
		"too many updaters":     {updatedBy(maxUpdaters + 1), false},
		"too many keys, nested": {list(1, list(maxTracked+1, int64(1)).Object), false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := isTrackable(test.object); got != test.want {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}
