// Package metrics makes the registry of one server and serves it. Each package declares its own metrics, in its
// metrics.go, on the prometheus.Registerer it is given, under the names kube-apiserver uses.
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

// NewRegistry returns a registry with what every process reports: the Go runtime, the process, and its build.
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

// Handler serves what has been gathered, in the format the client asks for. started, when the process was, is a header.
func Handler(gatherer prometheus.Gatherer, started time.Time) http.Handler {
	return promhttp.HandlerFor(gatherer, promhttp.HandlerOpts{ProcessStartTime: started})
}
