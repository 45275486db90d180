package operator

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
)

// documents returns the objects in a file of manifests.
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

// TestManifestsAreRenderedFromConfig compares the rendered file with its sources, except for the namespace that
// kustomize adds.
func TestManifestsAreRenderedFromConfig(t *testing.T) {
	rendered := map[string]*unstructured.Unstructured{}
	for _, file := range []string{
		"../manifests/install.yaml", "../manifests/extension.yaml", "../manifests/monitoring.yaml",
	} {
		for _, object := range documents(t, file) {
			object.SetNamespace("")
			rendered[object.GetKind()+" "+object.GetName()] = object
		}
	}
	delete(rendered, "ConfigMap quorate-dashboards") // kustomize generates it from JSON files
	sources := 0
	err := filepath.WalkDir("../config", func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(file) != ".yaml" || entry.Name() == "kustomization.yaml" ||
			strings.Contains(file, "samples") || strings.Contains(file, "external-etcd") {
			return err
		}
		for _, object := range documents(t, file) {
			if object.GetKind() == "" { // rules and scrape configurations in Prometheus' own format
				continue
			}
			sources++
			object.SetNamespace("")
			got := rendered[object.GetKind()+" "+object.GetName()]
			if got == nil || !reflect.DeepEqual(got.Object, object.Object) {
				t.Errorf("%s of %s differs from manifests; run config/render.sh", object.GetName(), file)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if sources != len(rendered) {
		t.Errorf("%d rendered objects, want %d", len(rendered), sources)
	}
}

// TestNamespacedManifests checks that the namespaced install differs from the other one only in that the operator is
// restricted to one namespace, by its flags and by a Role.
func TestNamespacedManifests(t *testing.T) {
	others := map[string]*unstructured.Unstructured{}
	for _, object := range documents(t, "../manifests/install.yaml") {
		others[object.GetKind()+" "+object.GetName()] = object
	}
	for _, object := range documents(t, "../manifests/install-namespaced.yaml") {
		key := object.GetKind() + " " + object.GetName()
		switch key {
		case "Role quorate-operator", "RoleBinding quorate-operator":
			key = "Cluster" + key
			object.SetKind("Cluster" + object.GetKind())
			if object.GetNamespace() != "quorate-clusters" {
				t.Errorf("%s is in namespace %q", key, object.GetNamespace())
			}
			object.SetNamespace("")
			if object.Object["roleRef"] != nil {
				set(t, object, "ClusterRole", "roleRef", "kind")
			}
		case "Deployment quorate-operator":
			container := containers(t, object)[0]
			args, found := strings.CutSuffix(strings.Join(container.Args, " "), " --namespaces=quorate-clusters")
			if !found {
				t.Errorf("the operator is not restricted to a namespace: %q", container.Args)
			}
			if want := strings.Join(containers(t, others[key])[0].Args, " "); args != want {
				t.Errorf("arguments %q, want %q", args, want)
			}
			delete(others, key)
			continue
		}
		if other := others[key]; other == nil || !reflect.DeepEqual(object.Object, other.Object) {
			t.Errorf("%s differs from manifests/install.yaml", key)
		}
		delete(others, key)
	}
	for key := range others {
		t.Errorf("%s is only in manifests/install.yaml", key)
	}
}

func set(t *testing.T, object *unstructured.Unstructured, value string, fields ...string) {
	t.Helper()
	if err := unstructured.SetNestedField(object.Object, value, fields...); err != nil {
		t.Fatal(err)
	}
}

// containers returns the containers of a Deployment.
func containers(t *testing.T, object *unstructured.Unstructured) []corev1.Container {
	t.Helper()
	return template(t, object).Spec.Containers
}

func template(t *testing.T, object *unstructured.Unstructured) corev1.PodTemplateSpec {
	t.Helper()
	var deployment appsv1.Deployment
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &deployment); err != nil {
		t.Fatal(err)
	}
	return deployment.Spec.Template
}

// TestManifestsFitTheOperator checks that the manifests match the constants and flags of the operator.
func TestManifestsFitTheOperator(t *testing.T) {
	for _, file := range []string{"../manifests/install.yaml", "../manifests/install-namespaced.yaml"} {
		found := map[string]*unstructured.Unstructured{}
		for _, object := range documents(t, file) {
			found[object.GetKind()+" "+object.GetName()] = object
		}
		pod := template(t, found["Deployment quorate-operator"])
		container := pod.Spec.Containers[0]
		for _, variable := range container.Env {
			if variable.Name == imageVariable && variable.Value != container.Image {
				t.Errorf("%s: image of the operator %s, of the API servers %s", file, container.Image, variable.Value)
			}
		}
		if pod.Labels[desired.NameLabel] != desired.OperatorName {
			t.Errorf("%s: NetworkPolicies do not select the operator's labels %v", file, pod.Labels)
		}
		var o options
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		o.flags(flags)
		if err := flags.Parse(container.Args[1:]); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		for _, port := range container.Ports {
			if port.Name == "metrics" && o.metricsAddress != fmt.Sprintf(":%d", port.ContainerPort) {
				t.Errorf("%s: metrics address %s, want port %d", file, o.metricsAddress, port.ContainerPort)
			}
		}
		for _, kind := range []string{"Service", "Role", "ClusterRole"} {
			if found[kind+" "+metricsName] == nil {
				t.Errorf("%s has no %s %s", file, kind, metricsName)
			}
		}
	}
}

func TestSamplesAreValid(t *testing.T) {
	files, err := filepath.Glob("../config/samples/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	samples := map[string]bool{}
	for _, file := range files {
		for _, object := range documents(t, file) {
			if object.GroupVersionKind().Group != v1alpha1.GroupVersion.Group {
				continue
			}
			samples[object.GetKind()] = true
			typed, err := scheme.New(object.GroupVersionKind())
			if err != nil {
				t.Fatal(err)
			}
			if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(
				object.Object, typed, true,
			); err != nil {
				t.Errorf("%s: %v", file, err)
			}
			if cluster, ok := typed.(*v1alpha1.ApiServerCluster); ok {
				if err := desired.Validate(cluster, nil); err != nil {
					t.Errorf("%s: %v", file, err)
				}
			}
		}
	}
	if len(samples) < 4 {
		t.Errorf("there are samples of %v only", samples)
	}
}
