package builtin_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/util/version"
	utilcompatibility "k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	clientfeatures "k8s.io/client-go/features"
	"k8s.io/component-base/featuregate"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	"k8s.io/kubernetes/pkg/features"
	clocktesting "k8s.io/utils/clock/testing"

	"quorate.dev/apiserver/builtin"
	"quorate.dev/apiserver/builtin/enablement"
)

// TestGatesAreNotApplied: Gates returns the gates of the settings and leaves the process as it is.
func TestGatesAreNotApplied(t *testing.T) {
	before := utilfeature.DefaultFeatureGate.Enabled(features.EvictionRequestAPI)
	for name, gates := range map[string]map[string]string{
		"a name":                    {"EvictionRequestAPI": "true"},
		"a name with its component": {"kube:EvictionRequestAPI": "true"},
	} {
		got, err := builtin.Gates(builtin.Settings{Gates: gates})
		if err != nil || !got.Enabled(features.EvictionRequestAPI) {
			t.Errorf("%s: the gate is disabled, %v", name, err)
		}
	}
	if after := utilfeature.DefaultFeatureGate.Enabled(features.EvictionRequestAPI); after || before {
		t.Errorf("the gate of the process: before %t, after %t", before, after)
	}
}

// TestGatesOfEarlierVersion: a feature that is now enabled by default is disabled if the server emulates a version in
// which it was not.
func TestGatesOfEarlierVersion(t *testing.T) {
	effective := utilcompatibility.DefaultBuildEffectiveVersion()
	now, err := builtin.Gates(builtin.Settings{Version: effective})
	if err != nil || !now.Enabled(features.MutablePodResourcesForSuspendedJobs) {
		t.Fatalf("the current version: the gate is disabled, %v", err)
	}
	effective.SetEmulationVersion(version.MustParse("1.35"))
	effective.SetMinCompatibilityVersion(version.MustParse("1.34"))
	earlier, err := builtin.Gates(builtin.Settings{Version: effective})
	if err != nil || earlier.Enabled(features.MutablePodResourcesForSuspendedJobs) {
		t.Errorf("the version 1.35: the gate is enabled, %v", err)
	}
}

// TestGatesOfClients checks that a feature gate of client-go that is enabled with --feature-gates is enabled for the
// clients in this process.
func TestGatesOfClients(t *testing.T) {
	for _, gate := range []clientfeatures.Feature{clientfeatures.ClientsAllowCBOR, clientfeatures.ClientsPreferCBOR} {
		if _, err := builtin.Gates(builtin.Settings{Gates: map[string]string{string(gate): "true"}}); err != nil {
			t.Errorf("%s: %v", gate, err)
		}
		featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, featuregate.Feature(gate), true)
		if !clientfeatures.FeatureGates().Enabled(gate) {
			t.Errorf("%s is enabled, but not for clients", gate)
		}
	}
}

// TestGatesRejectsWhatConfigureRejects: both return the same errors, in an order that varies.
func TestGatesRejectsWhatConfigureRejects(t *testing.T) {
	for _, gates := range []map[string]string{
		{"AllAlpha": "perhaps"}, {"NoSuchGate": "true"},
		{"StorageVersionAPI": "true", "APIServerIdentity": "false"},
	} {
		_, got := builtin.Gates(builtin.Settings{Gates: gates})
		want := builtin.Configure(builtin.Settings{Gates: gates})
		if got == nil || want == nil || !slices.Equal(sortedErrors(got), sortedErrors(want)) {
			t.Errorf("%v: Gates returns %v, Configure returns %v", gates, got, want)
		}
	}
}

// sortedErrors returns the texts of an error or of the errors that it aggregates.
func sortedErrors(err error) []string {
	all := strings.Split(strings.Trim(err.Error(), "[]"), ", ")
	slices.Sort(all)
	return all
}

// TestAlphaGates checks that all alpha features are accepted. Some depend on GenericWorkload, which is beta and
// disabled by default.
func TestAlphaGates(t *testing.T) {
	gates, err := builtin.Gates(builtin.Settings{Gates: map[string]string{
		"AllAlpha": "true", "GenericWorkload": "true", "OpenAPIEnums": "false",
	}})
	if err != nil || !gates.Enabled("StorageVersionAPI") || !gates.Enabled("CBORServingAndStorage") ||
		gates.Enabled("OpenAPIEnums") {
		t.Errorf("got %v, %v", gates, err)
	}
}

func TestGateStatus(t *testing.T) {
	for name, want := range map[string]string{
		"CBORServingAndStorage": "", "OpenAPIEnums": "", "StorageVersionAPI": "",
		"ShardedListAndWatch": "", "LoggingAlphaOptions": "", "APIServingWithRoutine": "without effect",
		"ListFromCacheSnapshot":               "without effect",
		"APIServerWebhookAuthenticationToken": "", "ConsistentListFromCacheSkipTimeoutFallback": "",
	} {
		if got := builtin.GateStatus(name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

// TestEnable: APIServices cannot be disabled, because the aggregation of the server needs them.
func TestEnable(t *testing.T) {
	for name, test := range map[string]struct {
		config map[string]string
		want   string
	}{
		"the default":    {nil, ""},
		"a beta version": {map[string]string{"networking.k8s.io/v1beta1": "true"}, ""},
		"no APIServices": {
			map[string]string{"apiregistration.k8s.io/v1": "false"},
			"API group/version apiregistration.k8s.io/v1 must be enabled",
		},
		"an unknown group": {map[string]string{"example.com/v1": "true"}, "unknown api groups example.com/v1"},
	} {
		_, err := builtin.Enable(test.config, enablement.Emulation{})
		if (err != nil) != (test.want != "") || err != nil && err.Error() != test.want {
			t.Errorf("%s: got %v, want %q", name, err, test.want)
		}
	}
	effective := utilcompatibility.DefaultBuildEffectiveVersion()
	effective.SetEmulationVersion(version.MustParse("1.33"))
	apis, err := builtin.Enable(nil, enablement.Emulation{Version: effective})
	if err != nil {
		t.Fatal(err)
	}
	// resource.k8s.io/v1 is younger than Kubernetes 1.33.
	for _, d := range builtin.Definitions(builtin.Options{APIs: apis}) {
		if d.Group == "resource.k8s.io" {
			t.Errorf("%s is served in version 1.33", d.Plural)
		}
	}
}

// TestCustomResourceDefinitions: an extension server has one built-in kind.
func TestCustomResourceDefinitions(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Time{})
	got := builtin.CustomResourceDefinitions(clock)
	if len(got) != 1 || got[0].Plural != "customresourcedefinitions" || len(got[0].Versions) != 1 {
		t.Errorf("got %+v", got)
	}
}

// gathered returns the values of the metrics of a registry by their names, and "name{label}" of the first label.
func gathered(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.Metric {
			name := family.GetName()
			if len(metric.Label) > 0 {
				name += "{" + metric.Label[0].GetValue() + "}"
			}
			values[name] = metric.GetGauge().GetValue()
		}
	}
	return values
}

// TestMeasureFeatures: the metric has each gate with its state.
func TestMeasureFeatures(t *testing.T) {
	registry := prometheus.NewRegistry()
	builtin.MeasureFeatures(registry)
	values := gathered(t, registry)
	for gate, want := range map[string]float64{"EvictionRequestAPI": 0, "OpenAPIEnums": 1} {
		if got, ok := values["kubernetes_feature_enabled{"+gate+"}"]; !ok || got != want {
			t.Errorf("%s: got %v, present %t, want %v", gate, got, ok, want)
		}
	}
}

// TestMeasureUpstream: metrics of upstream's packages are exported, except those that the server has itself.
func TestMeasureUpstream(t *testing.T) {
	registry := prometheus.NewRegistry()
	builtin.MeasureUpstream(registry)
	values := gathered(t, registry)
	if values["go_goroutines"] < 1 {
		t.Errorf("got %v goroutines", values["go_goroutines"])
	}
	for name := range values {
		if strings.HasPrefix(name, "kubernetes_feature_enabled") {
			t.Errorf("%s is exported twice", name)
		}
	}
}
