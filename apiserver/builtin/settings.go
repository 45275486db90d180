package builtin

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/capabilities"

	"quorate.dev/apiserver/builtin/apiextensions"
	"quorate.dev/apiserver/builtin/apiregistration"
	"quorate.dev/apiserver/builtin/autoregister"
	"quorate.dev/apiserver/builtin/enablement"
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
			return fmt.Errorf("invalid value of %s=%s, err: %w", name, value, err)
		}
		// This server is one component: kube:NAME is the same as NAME.
		parsed[strings.TrimPrefix(name, "kube:")] = on
	}
	// A gate remembers what it refused and would refuse everything afterwards: a copy is asked first.
	if err := utilfeature.DefaultMutableFeatureGate.DeepCopy().SetFromMap(parsed); err != nil {
		return err
	}
	return utilfeature.DefaultMutableFeatureGate.SetFromMap(parsed)
}

// Enable reads the value of --runtime-config.
func Enable(config map[string]string) (enablement.APIs, error) {
	if len(config) == 0 {
		return enablement.APIs{}, nil
	}
	apis, err := enablement.Parse(config, legacyscheme.Scheme, apiextensions.NewScheme(), apiregistration.NewScheme())
	if err == nil && !apis.Serves(autoregister.Resource.WithVersion("v1")) {
		err = errors.New("API group/version apiregistration.k8s.io/v1 must be enabled")
	}
	return apis, err
}
