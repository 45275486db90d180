package apiserver

import (
	"runtime"

	"k8s.io/apimachinery/pkg/version"

	"quorate.dev/apiserver/config"
)

// kubernetesPatch is the patch version of the emulated Kubernetes version.
const kubernetesPatch = "3"

// Version returns what /version serves. A custom version, from --version=v1.36.3-custom, replaces the default.
func Version(custom string) version.Info {
	git := custom
	if git == "" {
		git = "v" + config.KubernetesMajor + "." + config.KubernetesMinor + "." + kubernetesPatch + "+quorate"
	}
	return version.Info{
		Major:                 config.KubernetesMajor,
		Minor:                 config.KubernetesMinor,
		EmulationMajor:        config.KubernetesMajor,
		EmulationMinor:        config.KubernetesMinor,
		MinCompatibilityMajor: config.KubernetesMajor,
		MinCompatibilityMinor: config.CompatibleMinor,
		GitVersion:            git,
		GitTreeState:          "clean",
		BuildDate:             "1970-01-01T00:00:00Z",
		GoVersion:             runtime.Version(),
		Compiler:              runtime.Compiler,
		Platform:              runtime.GOOS + "/" + runtime.GOARCH,
	}
}
