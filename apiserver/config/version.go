package config

import (
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"
)

// KubernetesPatch is the patch version of this server's Kubernetes version.
const KubernetesPatch = "2"

// These values of API.Version print the version instead of running a server.
const (
	PrintVersion    = "true"
	PrintRawVersion = "raw"
)

// DefaultVersion returns the version that this server reports without --version.
func DefaultVersion() string {
	return "v" + KubernetesMajor + "." + KubernetesMinor + "." + KubernetesPatch + "+quorate"
}

// versionValue mirrors component-base's verflag: a boolean, "raw", or a version that replaces the default version and
// has the same major, minor and patch version.
type versionValue string

// Set implements pflag.Value.
func (v *versionValue) Set(text string) error {
	if text == PrintRawVersion {
		*v = PrintRawVersion
		return nil
	}
	if strings.HasPrefix(text, "v") {
		if err := checkVersion(text); err != nil {
			return err
		}
		*v = versionValue(text)
		return nil
	}
	prints, err := strconv.ParseBool(text)
	if err != nil {
		return err
	}
	*v = ""
	if prints {
		*v = PrintVersion
	}
	return nil
}

// String implements pflag.Value.
func (v *versionValue) String() string { return string(*v) }

// Type implements pflag.Value.
func (v *versionValue) Type() string { return "version" }

func checkVersion(text string) error {
	custom, err := version.ParseSemantic(text)
	if err != nil {
		return err
	}
	own := version.MustParseSemantic(DefaultVersion())
	if custom.Major() != own.Major() || custom.Minor() != own.Minor() || custom.Patch() != own.Patch() {
		return fmt.Errorf("version %q must match major/minor/patch of default version %q", text, DefaultVersion())
	}
	return nil
}
