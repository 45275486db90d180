package config

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/version"
)

// The Kubernetes versions of this server. A Kubernetes minor upgrade changes them together with go.mod.
const (
	KubernetesMajor = "1"
	KubernetesMinor = "36"
	// CompatibleMinor is the oldest minor version that can read what this server stores.
	CompatibleMinor = "35"
	// oldestMinor is the oldest minor version that kube-apiserver can emulate.
	oldestMinor = "33"
)

// Compatibility has the flags for the emulated Kubernetes version and the oldest version that can read stored objects.
// Each has only one supported value.
type Compatibility struct {
	EmulatedVersion                []string // "1.36" or "kube=1.36"
	MinCompatibilityVersion        []string
	ForwardCompatible              bool // only valid with an older emulated version
	RuntimeConfigForwardCompatible bool // only valid with an older emulated version
}

func (c *Compatibility) flags(f *pflag.FlagSet) {
	sliceFlag(f, &c.EmulatedVersion, "emulated-version", "Kubernetes version to behave as: "+ownVersion()+" or kube="+ownVersion()+".")
	sliceFlag(f, &c.MinCompatibilityVersion, "min-compatibility-version", "Oldest Kubernetes version that can read what is stored: "+compatibleVersion()+" or kube="+compatibleVersion()+".")
	boolFlag(f, &c.ForwardCompatible, "emulation-forward-compatible", "Only for an emulated version other than the server's own.")
	boolFlag(f, &c.RuntimeConfigForwardCompatible, "runtime-config-emulation-forward-compatible", "Only for an emulated version other than the server's own.")
}

func ownVersion() string        { return KubernetesMajor + "." + KubernetesMinor }
func compatibleVersion() string { return KubernetesMajor + "." + CompatibleMinor }

func (c *Compatibility) validate() []error {
	errs := supported("--emulated-version", c.EmulatedVersion, ownVersion(), "emulation version %s is not between [%s, %s.0]")
	errs = append(errs, supported("--min-compatibility-version", c.MinCompatibilityVersion, compatibleVersion(), "minCompatibilityVersion version %s is not between [%s, %s]")...)
	const ownOnly = "ServerRunOptions.%s cannot be set to true if the emulation version is the same as the binary version"
	if c.ForwardCompatible {
		errs = append(errs, fmt.Errorf(ownOnly, "EmulationForwardCompatible"))
	}
	if c.RuntimeConfigForwardCompatible {
		errs = append(errs, fmt.Errorf(ownOnly, "RuntimeConfigEmulationForwardCompatible"))
	}
	return errs
}

// supported returns errors for all versions but the supported one, with kube-apiserver's text if it rejects the version
// too.
func supported(flag string, values []string, only, outside string) []error {
	var errs []error
	for _, value := range values {
		asked, err := parseVersion(value)
		switch {
		case err != nil:
			errs = append(errs, err)
		case asked.LessThan(version.MustParse(KubernetesMajor+"."+oldestMinor)) || version.MustParse(ownVersion()).LessThan(asked):
			errs = append(errs, fmt.Errorf(outside, asked, KubernetesMajor+"."+oldestMinor, ownVersion()))
		case !asked.EqualTo(version.MustParse(only)):
			errs = append(errs, fmt.Errorf("%s %s is not supported; omit it or use %s", flag, value, only))
		}
	}
	return errs
}

// parseVersion parses a version of kube, the only component.
func parseVersion(value string) (*version.Version, error) {
	component, text, named := strings.Cut(value, "=")
	if !named {
		component, text = "kube", value
	}
	if component != "kube" {
		return nil, fmt.Errorf("component not registered: %s", component)
	}
	asked, err := version.Parse(text)
	switch {
	case err != nil:
		return nil, err
	case asked.Patch() != 0:
		return nil, fmt.Errorf("patch version not allowed, got: %s=%s", component, text)
	case asked.PreRelease() != "":
		return nil, errors.New("pre-release version not allowed, got: " + text)
	}
	return asked, nil
}
