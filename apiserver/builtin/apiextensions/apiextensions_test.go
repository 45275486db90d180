package apiextensions_test

import (
	"slices"
	"testing"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	testingclock "k8s.io/utils/clock/testing"

	builtin "quorate.dev/apiserver/builtin/apiextensions"
	"quorate.dev/apiserver/builtin/builtintest"
	"quorate.dev/apiserver/builtin/schema"
	"quorate.dev/apiserver/resource"
)

func now() time.Time { return time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC) }

func definitions() []*resource.Definition {
	return builtin.Definitions(schema.NewLoader(), testingclock.NewFakePassiveClock(now()), builtintest.ServesAll)
}

func TestServed(t *testing.T) {
	t.Parallel()
	builtintest.CheckServed(t, definitions(), []builtintest.Served{
		{
			Resource: "customresourcedefinitions", Kind: "CustomResourceDefinition", Versions: "v1",
			ShortNames: "crd crds", Categories: "api-extensions",
			Stored:       "apiextensions.k8s.io/customresourcedefinitions apiextensions.k8s.io/v1beta1",
			Columns:      "Scope, Versions, Created At, (Group), (Kind), (ShortNames), (Established)",
			Subresources: []string{"status (no table)"},
		},
	})
}

const widgets = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com, generation: 7}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: widgets, kind: Widget}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]
`

func TestDefinitions(t *testing.T) {
	t.Parallel()
	builtintest.CheckWrites(t, definitions(), map[string]builtintest.Write{
		"create sets defaults and the stored version": {
			Endpoint: "customresourcedefinitions", Object: widgets,
			With: "status: {conditions: [{type: Established, status: 'True'}], acceptedNames: {plural: a, kind: A}, " +
				"storedVersions: [v0]}",
			Want: map[string]string{
				"metadata.generation": "1", "spec.names.singular": "widget", "spec.names.listKind": "WidgetList",
				"spec.conversion.strategy": "None", "status.storedVersions": `["v1"]`, "status.conditions": "",
				"status.acceptedNames.plural": "",
			},
		},
		"the name is that of the resource": {
			Endpoint: "customresourcedefinitions", Object: widgets, With: "metadata: {name: other.example.com}",
			Errors: []string{
				`metadata.name: Invalid value: "other.example.com": must be spec.names.plural+"."+spec.group`,
			},
		},
		"a schema must be structural": {
			Endpoint: "customresourcedefinitions", Object: widgets,
			With: "spec: {versions: [{name: v1, served: true, storage: true, " +
				"schema: {openAPIV3Schema: {type: object, properties: {spec: {}}}}}]}",
			Errors: []string{
				"spec.validation.openAPIV3Schema.properties[spec].type: Required value: " +
					"must not be empty for specified object fields",
			},
		},
		"groups of Kubernetes need an approval": {
			Endpoint: "customresourcedefinitions", Object: widgets,
			With: "{metadata: {name: widgets.apps.k8s.io}, spec: {group: apps.k8s.io}}",
			Errors: []string{
				"metadata.annotations[api-approved.kubernetes.io]: Required value: protected groups must have approval " +
					`annotation "api-approved.kubernetes.io", see https://github.com/kubernetes/enhancements/pull/1111`,
			},
		},
		"one version is stored": {
			Endpoint: "customresourcedefinitions", Object: widgets,
			With: "spec: {versions: [{name: v1, served: true, storage: false, schema: {openAPIV3Schema: {type: object}}}]}",
			Errors: []string{
				`spec.versions: Invalid value: [{"Name":"v1","Served":true,"Storage":false,"Deprecated":false,` +
					`"DeprecationWarning":null,"Schema":null,"Subresources":null,"AdditionalPrinterColumns":null,` +
					`"SelectableFields":null}]: must have exactly one version marked as storage version`,
				"status.storedVersions: Invalid value: null: must have at least one stored version",
			},
		},
		"a new stored version is added to the status": {
			Endpoint: "customresourcedefinitions", Object: widgets,
			Update: `
spec:
  versions:
  - {name: v2, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}
  - {name: v1, served: true, storage: false, schema: {openAPIV3Schema: {type: object}}}
status: {storedVersions: [v1]}
`,
			Want: map[string]string{"metadata.generation": "2", "status.storedVersions": `["v1","v2"]`},
		},
		"the scope of an established definition is immutable": {
			Endpoint: "customresourcedefinitions", Object: widgets,
			Stored: "status: {conditions: [{type: Established, status: 'True'}]}", Update: "spec: {scope: Cluster}",
			Errors: []string{`spec.scope: Invalid value: "Cluster": field is immutable`},
		},
		"the group is immutable": {
			Endpoint: "customresourcedefinitions", Object: widgets,
			Stored: "status: {conditions: [{type: Established, status: 'True'}]}", Update: "spec: {group: example.org}",
			Errors: []string{`spec.group: Invalid value: "example.org": field is immutable`},
		},
		"a change of the labels is no new generation": {
			Endpoint: "customresourcedefinitions", Object: widgets, Update: "metadata: {labels: {a: b}}",
			Want: map[string]string{"metadata.generation": "1", "metadata.labels.a": "b"},
		},
		// Upstream's strategy does not reset the labels.
		"a status update keeps the spec": {
			Endpoint: "customresourcedefinitions/status", Object: widgets,
			Update: "{metadata: {labels: {a: b}}, spec: {scope: Cluster}, " +
				"status: {conditions: [{type: Established, status: 'True'}]}}",
			Want: map[string]string{
				"metadata.generation": "1", "metadata.labels.a": "b", "spec.scope": "Namespaced",
				"status.conditions[0].type": "Established",
			},
		},
	})
}

// TestTermination: a definition that is deleted is kept for its custom resources, even without the finalizer.
func TestTermination(t *testing.T) {
	t.Parallel()
	target := builtintest.FindTarget(t, definitions(), "customresourcedefinitions", "")
	terminator := target.Endpoint.Delete.(resource.Terminator)
	for name, finalizers := range map[string][]string{
		"without a finalizer":  nil,
		"with the finalizer":   {apiextensions.CustomResourceCleanupFinalizer},
		"with other finalizer": {"example.com/other"},
	} {
		d := builtintest.Decode(t, target, widgets).(*apiextensions.CustomResourceDefinition)
		d.Finalizers = slices.Clone(finalizers)
		if terminator.Terminate(d, &metav1.DeleteOptions{}) {
			t.Errorf("%s: more than the finalizers is pending", name)
		}
		want := finalizers
		if !slices.Contains(want, apiextensions.CustomResourceCleanupFinalizer) {
			want = append(want, apiextensions.CustomResourceCleanupFinalizer)
		}
		condition := apiextensions.FindCRDCondition(d, apiextensions.Terminating)
		if !d.DeletionTimestamp.Time.Equal(now()) || !slices.Equal(d.Finalizers, want) || condition == nil ||
			condition.Status != apiextensions.ConditionTrue || condition.Reason != "InstanceDeletionPending" {
			t.Errorf("%s: got %+v with the condition %+v", name, d.ObjectMeta, condition)
		}
	}
	// The second deletion of a definition whose custom resources are deleted does not add the finalizer again.
	d := builtintest.Decode(t, target, widgets).(*apiextensions.CustomResourceDefinition)
	earlier := metav1.NewTime(now().Add(-time.Hour))
	d.DeletionTimestamp = &earlier
	if terminator.Terminate(d, &metav1.DeleteOptions{}) || len(d.Finalizers) > 0 || len(d.Status.Conditions) > 0 ||
		!d.DeletionTimestamp.Equal(&earlier) {
		t.Errorf("the second deletion: got %+v, %+v", d.ObjectMeta, d.Status)
	}
}

// TestStoredFormat: definitions are stored as JSON in v1beta1, like kube-apiserver's.
func TestStoredFormat(t *testing.T) {
	t.Parallel()
	target := builtintest.FindTarget(t, definitions(), "customresourcedefinitions", "")
	stored, err := target.Version.Codec.Store(t.Context(), builtintest.Decode(t, target, widgets))
	const want = `{"kind":"CustomResourceDefinition","apiVersion":"apiextensions.k8s.io/v1beta1",`
	if err != nil || len(stored) < len(want) || string(stored[:len(want)]) != want {
		t.Errorf("got %.100s, %v, want it to start with %s", stored, err, want)
	}
}
