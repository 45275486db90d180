package apiserver

import (
	"runtime"

	"k8s.io/apimachinery/pkg/util/version"
	versioninfo "k8s.io/apimachinery/pkg/version"

	"quorate.dev/apiserver/config"
)

// Version returns the version that /version serves. A custom version, from --version=v1.36.3-custom, replaces the
// default.
func Version(c *config.Config) versioninfo.Info {
	git := c.API.Version
	if git == "" || git == config.PrintVersion || git == config.PrintRawVersion {
		git = config.DefaultVersion()
	}
	effective := c.Compatibility.Effective()
	emulated, oldest := effective.EmulationVersion(), effective.MinCompatibilityVersion()
	return versioninfo.Info{
		Major:                 config.KubernetesMajor,
		Minor:                 config.KubernetesMinor,
		EmulationMajor:        version.Itoa(emulated.Major()),
		EmulationMinor:        version.Itoa(emulated.Minor()),
		MinCompatibilityMajor: version.Itoa(oldest.Major()),
		MinCompatibilityMinor: version.Itoa(oldest.Minor()),
		GitVersion:            git,
		GitTreeState:          "clean",
		BuildDate:             "1970-01-01T00:00:00Z",
		GoVersion:             runtime.Version(),
		Compiler:              runtime.Compiler,
		Platform:              runtime.GOOS + "/" + runtime.GOARCH,
	}
}
