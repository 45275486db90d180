package operator

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
)

// documents of a file of manifests.
func documents(t *testing.T, file string) []*unstructured.Unstructured {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var objects []*unstructured.Unstructured
	for _, document := range bytes.Split(text, []byte("\n---\n")) {
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(document, &object.Object); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		objects = append(objects, object)
	}
	return objects
}

// What is applied must be what was written: the rendered file has every object of its sources, unchanged but for the
// namespace that the rendering adds.
func TestManifestsAreRenderedFromConfig(t *testing.T) {
	rendered := map[string]*unstructured.Unstructured{}
	for _, object := range documents(t, "../manifests/install.yaml") {
		object.SetNamespace("")
		rendered[object.GetKind()+" "+object.GetName()] = object
	}
	sources := 0
	err := filepath.WalkDir("../config", func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(file) != ".yaml" || entry.Name() == "kustomization.yaml" || strings.Contains(file, "samples") {
			return err
		}
		for _, object := range documents(t, file) {
			sources++
			got := rendered[object.GetKind()+" "+object.GetName()]
			if got == nil || !reflect.DeepEqual(got.Object, object.Object) {
				t.Errorf("%s of %s is not in manifests/install.yaml as it is written; run config/render.sh", object.GetName(), file)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if sources != len(rendered) {
		t.Errorf("%d objects are rendered from %d", len(rendered), sources)
	}
}

// Naming another image in the manifests must give it to the API servers too.
func TestManifestsNameOneImage(t *testing.T) {
	var deployment appsv1.Deployment
	for _, object := range documents(t, "../manifests/install.yaml") {
		if object.GetKind() != "Deployment" {
			continue
		}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &deployment); err != nil {
			t.Fatal(err)
		}
	}
	container := deployment.Spec.Template.Spec.Containers[0]
	for _, variable := range container.Env {
		if variable.Name == imageVariable && variable.Value != container.Image {
			t.Errorf("the operator is %s, the API servers are %s", container.Image, variable.Value)
		}
	}
}

func TestSamplesAreValid(t *testing.T) {
	files, err := filepath.Glob("../config/samples/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	samples := 0
	for _, file := range files {
		for _, object := range documents(t, file) {
			if object.GetKind() != "ApiServerCluster" {
				continue
			}
			samples++
			cluster := &v1alpha1.ApiServerCluster{}
			if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(object.Object, cluster, true); err != nil {
				t.Errorf("%s: %v", file, err)
			}
			if err := desired.Validate(cluster, nil); err != nil {
				t.Errorf("%s: %v", file, err)
			}
		}
	}
	if samples < 2 {
		t.Errorf("%d samples", samples)
	}
}
