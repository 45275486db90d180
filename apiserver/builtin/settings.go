package builtin

import (
	"fmt"
	"strconv"

	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/kubernetes/pkg/capabilities"
)

// Configure sets what upstream's strategies read from variables of the process: whether containers may be
// privileged, and feature gates by name. It is called once, before Definitions; the first call decides about
// privileged containers.
func Configure(allowPrivileged bool, gates map[string]string) error {
	capabilities.Setup(allowPrivileged, 0)
	parsed := make(map[string]bool, len(gates))
	for name, value := range gates {
		on, err := strconv.ParseBool(value)
		if err != nil {
			return fmt.Errorf("feature gate %s: %w", name, err)
		}
		parsed[name] = on
	}
	if err := utilfeature.DefaultMutableFeatureGate.SetFromMap(parsed); err != nil {
		return fmt.Errorf("set feature gates: %w", err)
	}
	return nil
}
