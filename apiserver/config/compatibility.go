package config

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/component-base/compatibility"
)

// These are the Kubernetes versions of this server. An upgrade to another Kubernetes minor version changes them
// together with go.mod.
const (
	KubernetesMajor = "1"
	KubernetesMinor = "37"
	previousMinor   = "36"
	// oldestMinor is the oldest minor version that can be emulated.
	oldestMinor = "34"
)

// Compatibility configures the emulated Kubernetes version and the oldest version that can read stored objects.
type Compatibility struct {
	EmulatedVersion         []string // for example "1.37" or "kube=1.37"
	MinCompatibilityVersion []string
	// ForwardCompatible also serves newer versions of the resources that are served.
	ForwardCompatible bool
	// RuntimeConfigForwardCompatible also serves newer APIs that --runtime-config enables by name.
	RuntimeConfigForwardCompatible bool
}

func (c *Compatibility) flags(f *pflag.FlagSet) {
	const versions = " A minor version from " + KubernetesMajor + "." + oldestMinor + " to " + KubernetesMajor +
		"." + KubernetesMinor +
		", such as 1.36 or kube=1.36."
	sliceFlag(f, &c.EmulatedVersion, "emulated-version",
		"Kubernetes version whose APIs and features are emulated."+versions)
	sliceFlag(f, &c.MinCompatibilityVersion, "min-compatibility-version",
		"Oldest Kubernetes version that can read stored objects, by default the minor version before the emulated one."+
			versions)
	boolFlag(f, &c.ForwardCompatible, "emulation-forward-compatible",
		"With an older --emulated-version, also serve newer versions of the resources that are served.")
	boolFlag(f, &c.RuntimeConfigForwardCompatible, "runtime-config-emulation-forward-compatible",
		"With an older --emulated-version, also serve newer APIs that --runtime-config names.")
}

// Effective returns the effective version that the flags select. The flags must be valid.
func (c *Compatibility) Effective() compatibility.MutableEffectiveVersion {
	// Validate returns these errors.
	effective, _ := c.effective()
	return effective
}

func (c *Compatibility) effective() (compatibility.MutableEffectiveVersion, []error) {
	own, oldest :=
		version.MustParse(KubernetesMajor+"."+KubernetesMinor+".0"), version.MustParse(KubernetesMajor+"."+oldestMinor)
	effective := compatibility.NewEffectiveVersion(own, false, oldest, oldest)
	emulated, emulatedErr := parseVersions(c.EmulatedVersion)
	if emulated != nil {
		// SetEmulationVersion also sets the minimum compatibility version.
		effective.SetEmulationVersion(emulated)
	}
	oldestReader, readerErr := parseVersions(c.MinCompatibilityVersion)
	if oldestReader != nil {
		effective.SetMinCompatibilityVersion(oldestReader)
	}
	if err := errors.Join(emulatedErr, readerErr); err != nil {
		return effective, []error{err}
	}
	return effective, effective.Validate()
}

func (c *Compatibility) validate() []error {
	effective, errs := c.effective()
	if !effective.EmulationVersion().EqualTo(effective.BinaryVersion()) {
		return errs
	}
	const ownOnly = "ServerRunOptions.%s cannot be set to true if the emulation version is the same as the binary version"
	if c.ForwardCompatible {
		errs = append(errs, fmt.Errorf(ownOnly, "EmulationForwardCompatible"))
	}
	if c.RuntimeConfigForwardCompatible {
		errs = append(errs, fmt.Errorf(ownOnly, "RuntimeConfigEmulationForwardCompatible"))
	}
	return errs
}

// parseVersions parses the version of kube, which is the only component. Its errors are kube-apiserver's. It returns
// nil if values is empty.
func parseVersions(values []string) (*version.Version, error) {
	var found *version.Version
	for _, value := range values {
		component, text, named := strings.Cut(value, "=")
		if !named {
			component, text = "kube", value
		}
		component = strings.TrimSpace(component)
		parsed, err := version.Parse(strings.TrimSpace(text))
		switch {
		case err != nil:
			return nil, err
		case parsed.Patch() != 0:
			return nil, fmt.Errorf("patch version not allowed, got: %s=%s", component, parsed)
		case component != "kube":
			return nil, fmt.Errorf("component not registered: %s", component)
		case found != nil:
			return nil, fmt.Errorf("duplicate version flag, %[1]s=%[2]s and %[1]s=%[3]s", component, found, parsed)
		}
		found = parsed
	}
	return found, nil
}
