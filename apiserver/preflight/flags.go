package preflight

import (
	"fmt"

	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/component-base/featuregate"

	"quorate.dev/apiserver/admission/plugins"
	"quorate.dev/apiserver/builtin"
	"quorate.dev/apiserver/builtin/enablement"
	"quorate.dev/apiserver/config"
)

// Flags returns the error that prevents the start of a server with these flags although config.Validate accepts them.
// It reads no files and does not change the feature gates of this process.
func Flags(c *config.Config) error {
	version := c.Compatibility.Effective()
	gates, err := builtin.Gates(builtin.Settings{Gates: c.API.FeatureGates, Version: version})
	if err != nil {
		return err
	}
	if err := UIDHeaders(gates, c); err != nil {
		return err
	}
	apis, err := builtin.Enable(c.API.RuntimeConfig, Emulation(c))
	if err != nil {
		return err
	}
	if err := Leadership(gates, apis); err != nil {
		return err
	}
	return plugins.Check(selection(c), "")
}

// Emulation returns the emulated Kubernetes version and the APIs that are served in addition to it.
func Emulation(c *config.Config) enablement.Emulation {
	return enablement.Emulation{
		Version:                        c.Compatibility.Effective(),
		ForwardCompatible:              c.Compatibility.ForwardCompatible,
		RuntimeConfigForwardCompatible: c.Compatibility.RuntimeConfigForwardCompatible,
	}
}

// Leadership returns an error if the controller of coordinated leader election is enabled without its API.
// kube-apiserver starts in this case but never becomes ready.
func Leadership(gates featuregate.FeatureGate, apis enablement.APIs) error {
	candidates := coordinationv1beta1.SchemeGroupVersion.WithResource("leasecandidates")
	if gates.Enabled(features.CoordinatedLeaderElection) && !apis.Serves(candidates) {
		return fmt.Errorf("--feature-gates=%s=true requires --runtime-config=%s=true",
			features.CoordinatedLeaderElection, candidates.GroupVersion())
	}
	return nil
}

// UIDHeaders returns an error if --requestheader-uid-headers is set without its feature gate.
func UIDHeaders(gates featuregate.FeatureGate, c *config.Config) error {
	if len(c.Authentication.RequestHeaderUID) > 0 && !gates.Enabled(features.RemoteRequestHeaderUID) {
		return fmt.Errorf("--requestheader-uid-headers requires the %q feature to be enabled",
			features.RemoteRequestHeaderUID)
	}
	return nil
}

func selection(c *config.Config) plugins.Selection {
	return plugins.Selection{Enable: c.Admission.Enable, Disable: c.Admission.Disable, Control: c.Admission.Control}
}
