package builtin

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
	logsapi "k8s.io/component-base/logs/api/v1"
	metricsfeatures "k8s.io/component-base/metrics/features"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/capabilities"

	"quorate.dev/apiserver/builtin/apiextensions"
	"quorate.dev/apiserver/builtin/apiregistration"
	"quorate.dev/apiserver/builtin/enablement"
)

// Configure sets process-wide settings that upstream's strategies read: whether containers may be privileged, and
// feature gates. It must be called once, before Definitions; the first call decides about privileged containers.
func Configure(allowPrivileged bool, gates map[string]string) error {
	capabilities.Setup(allowPrivileged, 0)
	parsed := make(map[string]bool, len(gates))
	for name, value := range gates {
		on, err := strconv.ParseBool(value)
		if err != nil {
			return fmt.Errorf("invalid value of %s=%s, err: %w", name, value, err)
		}
		// This server is one component, so kube:NAME means NAME.
		parsed[strings.TrimPrefix(name, "kube:")] = on
	}
	if err := registerGates(utilfeature.DefaultMutableFeatureGate); err != nil {
		return err
	}
	// A gate that has rejected a value rejects all later ones, so validate on a copy first.
	trial := utilfeature.DefaultMutableFeatureGate.DeepCopy()
	if err := trial.SetFromMap(parsed); err != nil {
		return err
	}
	if err := refuseUnimplemented(trial); err != nil {
		return err
	}
	return utilfeature.DefaultMutableFeatureGate.SetFromMap(parsed)
}

// registerGates adds the gates that kube-apiserver registers from component libraries.
func registerGates(gates featuregate.MutableVersionedFeatureGate) error {
	return errors.Join(logsapi.AddFeatureGates(gates), metricsfeatures.AddFeatureGates(gates))
}

// unimplementedGates are gates, off by default, without an implementation here.
var unimplementedGates = []featuregate.Feature{
	features.APIServingWithRoutine, features.AllowUnsafeMalformedObjectDeletion, features.CBORServingAndStorage,
	features.ManifestBasedAdmissionControlConfig, features.ShardedListAndWatch,
	features.StorageVersionAPI, logsapi.LoggingAlphaOptions, metricsfeatures.NativeHistograms, "ClientsAllowCBOR", "ClientsPreferCBOR",
}

// refuseUnimplemented rejects enabled gates without an implementation.
func refuseUnimplemented(gates featuregate.FeatureGate) error {
	var on []string
	for _, gate := range unimplementedGates {
		if gates.Enabled(gate) {
			on = append(on, string(gate))
		}
	}
	if len(on) == 0 {
		return nil
	}
	return fmt.Errorf("--feature-gates: not implemented yet: %s; set them to false", strings.Join(on, ", "))
}

// Enable parses the value of --runtime-config.
func Enable(config map[string]string) (enablement.APIs, error) {
	if len(config) == 0 {
		return enablement.APIs{}, nil
	}
	apis, err := enablement.Parse(config, legacyscheme.Scheme, apiextensions.NewScheme(), apiregistration.NewScheme())
	if err == nil && !apis.Serves(apiregistration.APIServices.WithVersion("v1")) {
		err = errors.New("API group/version apiregistration.k8s.io/v1 must be enabled")
	}
	return apis, err
}
