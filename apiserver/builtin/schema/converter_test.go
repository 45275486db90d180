package schema

import (
	"strings"
	"testing"

	admissionv1alpha1 "k8s.io/api/admissionregistration/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
)

func newConverter(t *testing.T, loader *Loader) managedfields.TypeConverter {
	t.Helper()
	c, err := loader.For(scheme.Scheme)()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestApplicationsAreValidated: an applied configuration with an unknown field is rejected, also with duplicates.
func TestApplicationsAreValidated(t *testing.T) {
	t.Parallel()
	c := newConverter(t, NewLoader())
	for field, want := range map[string]string{"data": "", "dat": `.dat: field not declared in schema`} {
		configuration := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1", "kind": "ConfigMap", field: map[string]any{"key": "value"},
		}}
		for _, options := range [][]typed.ValidationOptions{nil, {typed.AllowDuplicates}} {
			_, err := c.ObjectToTyped(configuration, options...)
			if (err != nil) != (want != "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("field %s, options %v: got %v", field, options, err)
			}
		}
	}
}

// TestDuplicatesOfGoTypes: a stored object may have list elements with the same key, which validation rejects.
func TestDuplicatesOfGoTypes(t *testing.T) {
	t.Parallel()
	c := newConverter(t, NewLoader())
	pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "one"}, {Name: "one"}}}}
	pod.APIVersion, pod.Kind = "v1", "Pod"
	if _, err := c.ObjectToTyped(pod); err == nil {
		t.Error("duplicates were not found")
	}
	value, err := c.ObjectToTyped(pod, typed.AllowDuplicates)
	if err != nil {
		t.Fatal(err)
	}
	if set, err := value.ToFieldSet(); err != nil || !strings.Contains(set.String(), `.spec.containers[name="one"]`) {
		t.Errorf("got the fields %v, %v", set, err)
	}
}

// TestKindsWithoutGoType: the converter returns an error for a kind that is not in the scheme.
func TestKindsWithoutGoType(t *testing.T) {
	t.Parallel()
	c := newConverter(t, NewLoader())
	unknown := &corev1.Pod{}
	unknown.APIVersion, unknown.Kind = "example.com/v1", "Widget"
	if _, err := c.ObjectToTyped(unknown, typed.AllowDuplicates); err == nil {
		t.Error("an unknown kind was converted")
	}
}

// TestUnstableTypes: only the loader for all versions knows types of alpha and beta versions.
func TestUnstableTypes(t *testing.T) {
	t.Parallel()
	binding := &admissionv1alpha1.MutatingAdmissionPolicyBinding{}
	binding.APIVersion, binding.Kind = "admissionregistration.k8s.io/v1alpha1", "MutatingAdmissionPolicyBinding"
	for name, test := range map[string]struct {
		loader *Loader
		known  bool
	}{"stable": {NewLoader(), false}, "all": {NewLoaderForAllVersions(), true}} {
		c := newConverter(t, test.loader)
		if _, err := c.ObjectToTyped(binding); (err == nil) != test.known {
			t.Errorf("the loader of %s versions: got %v", name, err)
		}
	}
}

// TestDamagedSchema: a file that is not a compressed schema is an error.
func TestDamagedSchema(t *testing.T) {
	t.Parallel()
	if _, err := decode([]byte("text")); err == nil || !strings.HasPrefix(err.Error(), "decompress the schema") {
		t.Errorf("no gzip: got %v", err)
	}
	// The file ends after the header of gzip.
	if _, err := decode(embedded[:64]); err == nil || !strings.HasPrefix(err.Error(), "decode the schema") {
		t.Errorf("a truncated file: got %v", err)
	}
	damaged := &Loader{parser: func() (*typed.Parser, error) { return decode(nil) }}
	if _, err := damaged.For(runtime.NewScheme())(); err == nil {
		t.Error("an empty file: no error")
	}
}
