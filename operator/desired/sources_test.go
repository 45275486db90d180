package desired_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
)

// TestSources sets every reference in the API types, so that a new reference is not forgotten in Sources.
func TestSources(t *testing.T) {
	cluster := &v1alpha1.ApiServerCluster{}
	want := map[string][]string{}
	refer(reflect.ValueOf(&cluster.Spec).Elem(), "spec", want)
	want["Secret"] = slices.DeleteFunc(want["Secret"], func(name string) bool { return name == "spec.ImagePullSecrets" })
	if len(want["ConfigMap"]) < 2 || len(want["Secret"]) < 10 {
		t.Fatalf("found too few references: %v", want)
	}
	for kind, names := range want {
		got := desired.Sources(cluster, kind)
		slices.Sort(got)
		slices.Sort(names)
		if !slices.Equal(got, names) {
			t.Errorf("%s:\ngot  %v\nwant %v", kind, got, names)
		}
	}
	for kind := range want {
		if got := desired.Sources(&v1alpha1.ApiServerCluster{}, kind); len(got) > 0 {
			t.Errorf("an empty spec refers to %v", got)
		}
	}
}

// refer sets all references in a value of the API to the path of their field, and adds the paths to paths, by kind.
func refer(value reflect.Value, path string, paths map[string][]string) {
	if reference, ok := value.Addr().Interface().(*corev1.LocalObjectReference); ok {
		kind := "Secret"
		if strings.Contains(path, "ConfigMap") {
			kind = "ConfigMap"
		}
		reference.Name = path
		paths[kind] = append(paths[kind], path)
		return
	}
	switch value.Kind() {
	case reflect.Pointer:
		value.Set(reflect.New(value.Type().Elem()))
		refer(value.Elem(), path, paths)
	case reflect.Slice:
		value.Set(reflect.MakeSlice(value.Type(), 1, 1))
		refer(value.Index(0), path, paths)
	case reflect.Struct:
		if value.Type().PkgPath() != reflect.TypeFor[v1alpha1.ApiServerCluster]().PkgPath() {
			return
		}
		for i := range value.NumField() {
			refer(value.Field(i), path+"."+value.Type().Field(i).Name, paths)
		}
	}
}
