package move

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"
)

func object(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &o.Object); err != nil {
		t.Fatal(err)
	}
	return o
}

const stored = `
apiVersion: parts.io/v1
kind: Part
metadata: {name: a, namespace: n, uid: old, resourceVersion: "7", generation: 3, creationTimestamp: "2026-01-01T00:00:00Z",
  deletionTimestamp: "2026-01-02T00:00:00Z", deletionGracePeriodSeconds: 0, finalizers: [x/y]}
spec: {size: 1, list: [a]}
status: {ready: true}
`

func TestDifferences(t *testing.T) {
	for _, test := range []struct {
		name      string
		direction Direction
		change    func(o *unstructured.Unstructured)
		want      []string
	}{
		{"revision", ToExtension, func(o *unstructured.Unstructured) { o.SetResourceVersion("8") }, nil},
		{
			"UID to the extension", ToExtension, func(o *unstructured.Unstructured) { o.SetUID("new") },
			[]string{"metadata.uid"},
		},
		{"UID to the host", ToHost, func(o *unstructured.Unstructured) { o.SetUID("new") }, nil},
		{
			"generation", ToExtension, func(o *unstructured.Unstructured) { o.SetGeneration(4) },
			[]string{"metadata.generation"},
		},
		{"finalizers", ToHost, func(o *unstructured.Unstructured) { o.SetFinalizers(nil) }, []string{"metadata.finalizers"}},
		{"status", ToHost, func(o *unstructured.Unstructured) { delete(o.Object, "status") }, []string{"status"}},
		{"added field", ToExtension, func(o *unstructured.Unstructured) {
			_ = unstructured.SetNestedField(o.Object, "b", "spec", "color")
		}, []string{"spec.color"}},
		{"access version", ToHost, func(o *unstructured.Unstructured) { o.SetAPIVersion("parts.io/" + accessVersion) }, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			source, copied := object(t, stored), object(t, stored)
			test.change(copied)
			if got := differences(test.direction, source, copied); !slices.Equal(got, test.want) {
				t.Errorf("got %v, want %v", got, test.want)
			}
			a, err := digestOf(test.direction, source)
			if err != nil {
				t.Fatal(err)
			}
			b, err := digestOf(test.direction, copied)
			if err != nil || (a.content == b.content) != (len(test.want) == 0) {
				t.Errorf("equal digests: %v, error %v", a.content == b.content, err)
			}
		})
	}
}

func TestForHostHasNoAssignedFields(t *testing.T) {
	source := object(t, stored)
	got := forHost(source, "parts.io")
	want := object(t, `
apiVersion: parts.io/quoratetransfer
kind: Part
metadata: {name: a, namespace: n, finalizers: [x/y]}
spec: {size: 1, list: [a]}
status: {ready: true}
`)
	if !reflect.DeepEqual(got.Object, want.Object) {
		t.Errorf("got %v, want %v", got.Object, want.Object)
	}
	if source.GetUID() != "old" {
		t.Error("the source was changed")
	}
}

const definition = `
metadata: {name: parts.parts.io, uid: u, annotations: {quorate.dev/transfer: x, keep: "1"}}
spec:
  group: parts.io
  scope: Namespaced
  names: {plural: parts}
  conversion: {strategy: Webhook, webhook: {conversionReviewVersions: [v1]}}
  versions:
  - {name: v1, served: true, storage: false, subresources: {status: {}}}
  - {name: v2, served: false, storage: true}
  - {name: v3, served: true, storage: false}
`

func TestDefinitions(t *testing.T) {
	crd := object(t, definition)
	r, err := resourceOf(crd)
	if err != nil {
		t.Fatal(err)
	}
	want := resource{Plural: "parts", Namespaced: true, Version: "v1", Served: []string{"v1", "v3"}, Group: "parts.io"}
	if !reflect.DeepEqual(r, want) {
		t.Errorf("got %+v, want %+v", r, want)
	}
	spec, _ := crd.Object["spec"].(map[string]any)
	before := crd.DeepCopy()
	for storage, stored := range map[string]string{"": "v2", "v1": "v1"} {
		access := &unstructured.Unstructured{Object: map[string]any{"spec": withAccess(withAccess(spec, storage), storage)}}
		var names, storages []string
		for _, version := range versionsOf(access) {
			name, _ := version["name"].(string)
			if names = append(names, name); version["storage"] == true {
				storages = append(storages, name)
			}
		}
		if !slices.Equal(names, []string{"v1", "v2", "v3", accessVersion}) || !slices.Equal(storages, []string{stored}) {
			t.Errorf("versions %v, stored in %v", names, storages)
		}
		if strategy, _, _ := unstructured.NestedString(access.Object, "spec", "conversion", "strategy"); strategy != "None" {
			t.Errorf("got strategy %s, want None", strategy)
		}
	}
	if !reflect.DeepEqual(crd.Object, before.Object) {
		t.Error("the definition was changed")
	}
	copied := copyOfDefinition(crd)
	if copied.GetUID() != "" || !reflect.DeepEqual(copied.GetAnnotations(), map[string]string{"keep": "1"}) {
		t.Errorf("got metadata %v", copied.Object["metadata"])
	}
}

func TestPolicy(t *testing.T) {
	p := policy("parts.io", []resource{{Plural: "parts"}}, []string{"v1", accessVersion}, `a"b`)
	rule := p.Spec.MatchConstraints.ResourceRules[0]
	if !slices.Equal(rule.Resources, []string{"parts", "parts/*"}) ||
		!slices.Equal(rule.APIVersions, []string{"v1", accessVersion}) {
		t.Errorf("got rule %+v", rule)
	}
	if expression := p.Spec.Validations[0].Expression; !strings.HasSuffix(expression, `== "a\"b"`) {
		t.Errorf("the user is not quoted: %s", expression)
	}
}

func TestOwners(t *testing.T) {
	references := []metav1.OwnerReference{{Name: "a", UID: "1"}, {Name: "b", UID: "2"}}
	uids := map[types.UID]types.UID{"2": "20", "20": "200"}
	got := rewritten(references, uids)
	if got[0].UID != "1" || got[1].UID != "20" || references[1].UID != "2" {
		t.Errorf("got %v, from %v", got, references)
	}
	if !refersTo(references, uids) || refersTo(references[:1], uids) {
		t.Error("references are not found")
	}
	for want, finalizers := range map[metav1.DeletionPropagation][]string{
		metav1.DeletePropagationOrphan:     {"x/y", metav1.FinalizerOrphanDependents},
		metav1.DeletePropagationForeground: {metav1.FinalizerDeleteDependents},
		metav1.DeletePropagationBackground: {"x/y"},
	} {
		if got := propagation(finalizers); got != want {
			t.Errorf("%v: got %s, want %s", finalizers, got, want)
		}
	}
}

// TestSteps checks the steps from which a move returns to Copy, and after which it cannot be undone.
func TestSteps(t *testing.T) {
	for direction, list := range steps {
		if indexOf(list, "Copy") < 0 {
			t.Errorf("%s has no step Copy", direction)
		}
		final := false
		for _, one := range list {
			if final && !one.final {
				t.Errorf("%s: %s can be undone, unlike the step before", direction, one.name)
			}
			final = one.final
		}
		if !final {
			t.Errorf("%s: the last step can be undone", direction)
		}
	}
}
