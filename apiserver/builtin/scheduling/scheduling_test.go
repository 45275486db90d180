package scheduling_test

import (
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	"k8s.io/kubernetes/pkg/features"

	"quorate.dev/apiserver/builtin/builtintest"
	"quorate.dev/apiserver/builtin/scheduling"
	"quorate.dev/apiserver/resource"
)

func TestServed(t *testing.T) {
	featuregatetesting.SetFeatureGatesDuringTest(t, utilfeature.DefaultFeatureGate, featuregatetesting.FeatureOverrides{
		features.GenericWorkload: true, features.TopologyAwareWorkloadScheduling: true, features.CompositePodGroup: true,
	})
	builtintest.CheckServed(t, scheduling.Definitions(builtintest.NewBuilder()), []builtintest.Served{
		{
			Resource: "priorityclasses", Kind: "PriorityClass", Versions: "v1", ShortNames: "pc",
			Stored:  "priorityclasses scheduling.k8s.io/v1",
			Columns: "Value, Global-Default, Age, PreemptionPolicy",
		},
		{
			Resource: "podgroups", Kind: "PodGroup", Versions: "v1beta1 v1alpha3", Namespaced: true,
			Stored: "podgroups scheduling.k8s.io/v1beta1", Columns: "Policy, Workload, Status, Age",
			Subresources: []string{"status"},
		},
		{
			Resource: "workloads", Kind: "Workload", Versions: "v1beta1 v1alpha3", Namespaced: true,
			Stored: "workloads scheduling.k8s.io/v1beta1", Columns: "Age",
		},
		{
			Resource: "compositepodgroups", Kind: "CompositePodGroup", Versions: "v1alpha3", Namespaced: true,
			Stored: "compositepodgroups scheduling.k8s.io/v1alpha3", Columns: "Policy, Workload, Age",
			Subresources: []string{"status"},
		},
	})
}

// TestGates: workloads are not served unless their feature gate is enabled.
func TestGates(t *testing.T) {
	for _, d := range scheduling.Definitions(builtintest.NewBuilder()) {
		if served := len(d.Versions) > 0; served != (d.Plural == "priorityclasses") {
			t.Errorf("%s: served %t", d.Plural, served)
		}
	}
}

const class = "{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, " +
	"metadata: {name: high, generation: 7}, value: 1000}"

func TestPriorityClasses(t *testing.T) {
	t.Parallel()
	builtintest.CheckWrites(t, scheduling.Definitions(builtintest.NewBuilder()), map[string]builtintest.Write{
		"create sets defaults": {
			Endpoint: "priorityclasses", Object: class,
			Want: map[string]string{"metadata.generation": "1", "preemptionPolicy": "PreemptLowerPriority", "globalDefault": ""},
		},
		"high values are reserved": {
			Endpoint: "priorityclasses", Object: class, With: "value: 1000000001",
			Errors: []string{
				"value: Forbidden: maximum allowed value of a user defined priority is 1000000000",
			},
		},
		"names of the system are reserved": {
			Endpoint: "priorityclasses", Object: class, With: "metadata: {name: system-mine}",
			Errors: []string{
				`metadata.name: Forbidden: priority class names with 'system-' prefix are reserved for system use only. error: ` +
					"system-mine is not a known system priority class",
			},
		},
		"the value is immutable": {
			Endpoint: "priorityclasses", Object: class, Update: "value: 2000",
			Errors: []string{"value: Forbidden: may not be changed in an update."},
		},
		"the description can change": {
			Endpoint: "priorityclasses", Object: class, Update: "description: for databases",
			Want: map[string]string{"description": "for databases"},
		},
	})
}

// TestSystemClassesAreKept: the classes of the system cannot be deleted.
func TestSystemClassesAreKept(t *testing.T) {
	t.Parallel()
	target := builtintest.FindTarget(t, scheduling.Definitions(builtintest.NewBuilder()), "priorityclasses", "")
	guard := target.Endpoint.Delete.(resource.DeletionGuard)
	for _, name := range []string{"system-node-critical", "system-cluster-critical"} {
		want := `priorityclasses.scheduling.k8s.io "` + name +
			`" is forbidden: this is a system priority class and cannot be deleted`
		if err := guard.CheckDeletion(name); !apierrors.IsForbidden(err) || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	if err := guard.CheckDeletion("high"); err != nil {
		t.Errorf("another class: got %v", err)
	}
}
