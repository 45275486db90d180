package preflight

import (
	"errors"
	"fmt"

	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	coordinationv1beta1 "k8s.io/api/coordination/v1beta1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/component-base/featuregate"
	logsapi "k8s.io/component-base/logs/api/v1"

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
	if err := Logging(gates, c.Logging); err != nil {
		return err
	}
	if err := UIDHeaders(gates, c); err != nil {
		return err
	}
	apis, err := builtin.Enable(c.API.RuntimeConfig, Emulation(c, gates))
	if err != nil {
		return err
	}
	if err := errors.Join(Leadership(gates, apis), StorageVersions(gates, c, apis)); err != nil {
		return err
	}
	return plugins.Check(selection(c), "")
}

// Emulation returns the emulated Kubernetes version and the APIs that are served in addition to it.
func Emulation(c *config.Config, gates featuregate.FeatureGate) enablement.Emulation {
	return enablement.Emulation{
		Version:                        c.Compatibility.Effective(),
		Gates:                          gates,
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

// RecordsStorageVersions reports whether a server records its storage versions. An extension server does not, as
// upstream's extension servers.
func RecordsStorageVersions(gates featuregate.FeatureGate, c *config.Config) bool {
	return !c.Extension.Enabled() && gates.Enabled(features.StorageVersionAPI) &&
		gates.Enabled(features.APIServerIdentity)
}

// StorageVersions returns an error if the API in which storage versions are to be recorded is not served.
// kube-apiserver starts in this case but never becomes ready.
func StorageVersions(gates featuregate.FeatureGate, c *config.Config, apis enablement.APIs) error {
	records := apiserverinternalv1alpha1.SchemeGroupVersion.WithResource("storageversions")
	if RecordsStorageVersions(gates, c) && !apis.Serves(records) {
		return fmt.Errorf("--feature-gates=%s=true requires --runtime-config=%s=true", features.StorageVersionAPI,
			records.GroupVersion())
	}
	return nil
}

// Logging returns kube-apiserver's error if options of the log are set without their feature gate.
func Logging(gates featuregate.FeatureGate, c config.Logging) error {
	configuration := logsapi.NewLoggingConfiguration()
	configuration.Options = c.Options
	var problems field.ErrorList
	if c.Format == logsapi.JSONLogFormat && !gates.Enabled(logsapi.LoggingBetaOptions) {
		problems = append(problems, field.Forbidden(field.NewPath("format"),
			"Log format json is disabled, see LoggingBetaOptions feature"))
	}
	return append(problems, logsapi.Validate(configuration, gates, nil)...).ToAggregate()
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
