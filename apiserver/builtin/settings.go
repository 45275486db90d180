package builtin

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/features"
	utilcompatibility "k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/compatibility"
	"k8s.io/component-base/featuregate"
	logsapi "k8s.io/component-base/logs/api/v1"
	metricsfeatures "k8s.io/component-base/metrics/features"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/capabilities"

	"quorate.dev/apiserver/builtin/apiextensions"
	"quorate.dev/apiserver/builtin/apiregistration"
	"quorate.dev/apiserver/builtin/enablement"
)

// Settings are the process-wide settings of upstream's code.
type Settings struct {
	// AllowPrivileged allows privileged containers.
	AllowPrivileged bool
	// Gates are the values of feature gates.
	Gates map[string]string
	// Version is the effective version, which determines the defaults of feature gates, CEL libraries and storage
	// versions; nil means this server's own version.
	Version compatibility.MutableEffectiveVersion
}

// Configure applies the settings to the process. It must be called once, before Definitions. AllowPrivileged of later
// calls has no effect.
func Configure(settings Settings) error {
	capabilities.Setup(settings.AllowPrivileged, 0)
	parsed, err := parseGates(settings.Gates)
	if err != nil {
		return err
	}
	if err := registerGates(utilfeature.DefaultMutableFeatureGate); err != nil {
		return err
	}
	if settings.Version != nil {
		if err := emulate(settings.Version); err != nil {
			return err
		}
	}
	// A gate that has rejected a value rejects all later values; therefore the values are validated on a copy first.
	trial := utilfeature.DefaultMutableFeatureGate.DeepCopy()
	if err := trial.SetFromMap(parsed); err != nil {
		return err
	}
	if err := utilfeature.DefaultMutableFeatureGate.SetFromMap(parsed); err != nil {
		return err
	}
	metricsfeatures.ApplyFeatureGates(utilfeature.DefaultFeatureGate)
	return nil
}

// Gates returns the feature gates that Configure would set, or its error, without changing the process.
func Gates(settings Settings) (featuregate.FeatureGate, error) {
	parsed, err := parseGates(settings.Gates)
	if err != nil {
		return nil, err
	}
	gates := utilfeature.DefaultMutableFeatureGate.DeepCopy()
	if err := registerGates(gates); err != nil {
		return nil, err
	}
	if v := settings.Version; v != nil {
		if err := gates.SetEmulationVersionAndMinCompatibilityVersion(
			v.EmulationVersion(), v.MinCompatibilityVersion(),
		); err != nil {
			return nil, err
		}
	}
	if err := gates.SetFromMap(parsed); err != nil {
		return nil, err
	}
	return gates, nil
}

// parseGates parses the values of feature gates. A name may have the prefix of the component to which the gate belongs,
// "kube:", if all names have the prefix.
func parseGates(gates map[string]string) (map[string]bool, error) {
	parsed, prefixed := make(map[string]bool, len(gates)), 0
	for _, name := range slices.Sorted(maps.Keys(gates)) {
		on, err := strconv.ParseBool(gates[name])
		if err != nil {
			return nil, fmt.Errorf("invalid value of %s=%s, err: %w", name, gates[name], err)
		}
		component, gate, found := strings.Cut(name, ":")
		if !found {
			parsed[name] = on
			continue
		}
		if component != compatibility.DefaultKubeComponent {
			return nil, fmt.Errorf("component not registered: %s", component)
		}
		parsed[gate] = on
		prefixed++
	}
	if prefixed > 0 && prefixed < len(gates) {
		return nil, errors.New("set kube feature gates with default empty prefix or kube: prefix consistently, " +
			"do not mix use")
	}
	return parsed, nil
}

// emulate makes a version the effective version of the process.
func emulate(effective compatibility.MutableEffectiveVersion) error {
	gates := utilfeature.DefaultMutableFeatureGate
	versions := utilcompatibility.DefaultComponentGlobalsRegistry
	versions.Reset()
	if err := versions.Register(compatibility.DefaultKubeComponent, effective, gates); err != nil {
		return fmt.Errorf("register the version: %w", err)
	}
	return gates.SetEmulationVersionAndMinCompatibilityVersion(effective.EmulationVersion(),
		effective.MinCompatibilityVersion())
}

// registerGates adds the feature gates that kube-apiserver registers from component libraries.
func registerGates(gates featuregate.MutableVersionedFeatureGate) error {
	return errors.Join(logsapi.AddFeatureGates(gates), metricsfeatures.AddFeatureGates(gates))
}

// withoutEffect are feature gates of parts of kube-apiserver that this server replaces: the goroutines of its handlers,
// and the watches and snapshots of its watch cache.
var withoutEffect = []featuregate.Feature{
	features.APIServingWithRoutine, features.ConcurrentWatchObjectDecode, features.ListFromCacheSnapshot,
}

// GateStatus returns a note about a feature gate that has no effect. The note is empty for other gates.
func GateStatus(name string) string {
	if slices.Contains(withoutEffect, featuregate.Feature(name)) {
		return "without effect"
	}
	return ""
}

// serveRemovedVariable is the environment variable with which kube-apiserver serves, for one more release, the APIs
// that its version removes.
const serveRemovedVariable = "KUBE_APISERVER_SERVE_REMOVED_APIS_FOR_ONE_RELEASE"

// Enable parses the value of --runtime-config, and applies the emulated version and the environment variable
// KUBE_APISERVER_SERVE_REMOVED_APIS_FOR_ONE_RELEASE.
func Enable(config map[string]string, emulation enablement.Emulation) (enablement.APIs, error) {
	if text, ok := os.LookupEnv(serveRemovedVariable); ok {
		on, err := strconv.ParseBool(text)
		if err != nil {
			return enablement.APIs{}, err // kube-apiserver's error, which does not name the variable
		}
		emulation.ServeRemoved = on
	}
	schemes := []*runtime.Scheme{legacyscheme.Scheme, apiextensions.NewScheme(), apiregistration.NewScheme()}
	apis, err := enablement.Parse(config, schemes...)
	if err == nil {
		apis, err = apis.Emulate(emulation, schemes...)
	}
	if err == nil && !apis.Serves(apiregistration.APIServices.WithVersion("v1")) {
		err = errors.New("API group/version apiregistration.k8s.io/v1 must be enabled")
	}
	return apis, err
}
