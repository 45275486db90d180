// Package metrics has the metrics registry of one server and its HTTP handler. Each package registers its own metrics,
// with kube-apiserver's names, in the prometheus.Registerer that it gets as an argument.
package metrics

import (
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/apimachinery/pkg/version"
)

// NewRegistry returns a registry with the metrics of the build. builtin.MeasureUpstream adds upstream's metrics of the
// Go runtime and the process.
func NewRegistry(build version.Info) *Registry {
	registry := &Registry{Registry: prometheus.NewRegistry()}
	promauto.With(registry).NewGauge(prometheus.GaugeOpts{
		Name: "kubernetes_build_info",
		Help: "[BETA] A metric with a constant '1' value labeled by major, minor, git version, git commit, git tree state, " +
			"build date, Go version, and compiler from which Kubernetes was built, and platform on which it is running.",
		ConstLabels: prometheus.Labels{
			"major": build.Major, "minor": build.Minor, "git_version": build.GitVersion, "git_commit": build.GitCommit,
			"git_tree_state": build.GitTreeState, "build_date": build.BuildDate, "go_version": build.GoVersion,
			"compiler": build.Compiler, "platform": build.Platform,
		},
	}).Set(1)
	promauto.With(registry).NewGauge(prometheus.GaugeOpts{
		Name: "version_info",
		Help: "[ALPHA] Provides the compatibility version info of the component. The component label is the name of " +
			"the component, usually kube, but is relevant for aggregated-apiservers.",
		ConstLabels: prometheus.Labels{
			"component": "kube", "binary": release(build.GitVersion),
			"emulation":  build.EmulationMajor + "." + build.EmulationMinor,
			"min_compat": build.MinCompatibilityMajor + "." + build.MinCompatibilityMinor,
		},
	}).Set(1)
	return registry
}

// release returns the numbers of a version: 1.36.3 for v1.36.3+quorate.
func release(version string) string {
	numbers, _, _ := strings.Cut(strings.TrimPrefix(version, "v"), "+")
	return numbers
}

// Handler serves the metrics in the format that the client accepts. started, the start time of the process, is sent in
// a header.
func Handler(gatherer prometheus.Gatherer, started time.Time) http.Handler {
	return promhttp.HandlerFor(gatherer, promhttp.HandlerOpts{ProcessStartTime: started})
}
