package lifecycle_test

import (
	"testing"

	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/builtin/builtintest"
	"quorate.dev/apiserver/builtin/lifecycle"
	"quorate.dev/apiserver/resource"
)

func definitions() []*resource.Definition {
	return lifecycle.Definitions(builtintest.NewBuilder(), clock.RealClock{})
}

func TestServed(t *testing.T) {
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.EvictionRequestAPI, true)
	builtintest.CheckServed(t, definitions(), []builtintest.Served{
		{
			Resource: "evictions", Kind: "Eviction", Versions: "v1alpha1", Namespaced: true,
			Stored: "evictions lifecycle.k8s.io/v1alpha1", Subresources: []string{"status"},
			Columns: "Target, Target Type, Status, Active Responder, Responder Status, Responder Expected Finish, " +
				"Requesters, Age, (Responder Heartbeat), (Responder Status Message)",
		},
		{
			Resource: "evictionrequests", Kind: "EvictionRequest", Versions: "v1alpha1", Namespaced: true,
			Stored: "evictionrequests lifecycle.k8s.io/v1alpha1", Subresources: []string{"status"},
			Columns: "Target, Target Type, Status, Requester, Intent, Age",
		},
	})
}

// TestGate checks that the kinds are not served unless their feature gate is enabled.
func TestGate(t *testing.T) {
	for _, d := range definitions() {
		if len(d.Versions) > 0 {
			t.Errorf("%s is served", d.Plural)
		}
	}
}
