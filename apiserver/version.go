package apiserver

import (
	"runtime"

	"k8s.io/apimachinery/pkg/version"
)

// The Kubernetes version this server behaves as. A Kubernetes minor upgrade changes it together with go.mod.
const (
	kubernetesMajor = "1"
	kubernetesMinor = "36"
	kubernetesPatch = "3"
)

// Version is what /version answers. A custom version, from --version=v1.36.3-custom, replaces the built-in one.
func Version(custom string) version.Info {
	git := custom
	if git == "" {
		git = "v" + kubernetesMajor + "." + kubernetesMinor + "." + kubernetesPatch + "+quorate"
	}
	return version.Info{
		Major:        kubernetesMajor,
		Minor:        kubernetesMinor,
		GitVersion:   git,
		GitTreeState: "clean",
		BuildDate:    "1970-01-01T00:00:00Z",
		GoVersion:    runtime.Version(),
		Compiler:     runtime.Compiler,
		Platform:     runtime.GOOS + "/" + runtime.GOARCH,
	}
}
