package schema_test

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"

	"quorate.dev/apiserver/builtin/schema"
)

func TestListsMergeByTheirKeys(t *testing.T) {
	converter, err := schema.NewLoader().For(scheme.Scheme)()
	if err != nil {
		t.Fatal(err)
	}
	deployment := func(container, image string) runtime.Object {
		d := &appsv1.Deployment{}
		d.APIVersion, d.Kind = "apps/v1", "Deployment"
		d.Spec.Template.Spec.Containers = []corev1.Container{{
			Name: container, Image: image, Ports: []corev1.ContainerPort{{ContainerPort: 80}},
		}}
		return d
	}
	one, err := converter.ObjectToTyped(deployment("one", "a"))
	if err != nil {
		t.Fatal(err)
	}
	two, err := converter.ObjectToTyped(deployment("two", "b"))
	if err != nil {
		t.Fatal(err)
	}
	merged, err := one.Merge(two)
	if err != nil {
		t.Fatal(err)
	}
	object, err := converter.TypedToObject(merged)
	if err != nil {
		t.Fatal(err)
	}
	var result appsv1.Deployment
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(
		object.(runtime.Unstructured).UnstructuredContent(), &result,
	); err != nil {
		t.Fatal(err)
	}
	if containers := result.Spec.Template.Spec.Containers; len(containers) != 2 {
		t.Errorf("containers of different names were merged into %v", containers)
	}
}

func BenchmarkLoad(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := schema.NewLoader().For(scheme.Scheme)(); err != nil {
			b.Fatal(err)
		}
	}
}
