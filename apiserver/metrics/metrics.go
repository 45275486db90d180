// Package metrics has the metrics registry of one server and its handler. Each package registers its own metrics, with
// kube-apiserver's names, in the prometheus.Registerer that it gets as an argument.
package metrics

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/apimachinery/pkg/version"
)

// NewRegistry returns a registry with the metrics of the Go runtime, the process and the build.
func NewRegistry(build version.Info) *Registry {
	registry := &Registry{Registry: prometheus.NewRegistry()}
	registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	promauto.With(registry).NewGauge(prometheus.GaugeOpts{
		Name: "kubernetes_build_info",
		Help: "A metric with a constant '1' value labeled by major, minor, git version, git commit, git tree state, build date, Go version, and compiler from which Kubernetes was built, and platform on which it is running.",
		ConstLabels: prometheus.Labels{
			"major": build.Major, "minor": build.Minor, "git_version": build.GitVersion, "git_commit": build.GitCommit,
			"git_tree_state": build.GitTreeState, "build_date": build.BuildDate, "go_version": build.GoVersion,
			"compiler": build.Compiler, "platform": build.Platform,
		},
	}).Set(1)
	return registry
}

// Handler serves the metrics in the format that the client accepts. started, the start time of the process, is sent in
// a header.
func Handler(gatherer prometheus.Gatherer, started time.Time) http.Handler {
	return promhttp.HandlerFor(gatherer, promhttp.HandlerOpts{ProcessStartTime: started})
}
