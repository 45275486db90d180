package apiserver

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/pflag"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	zpagesfeatures "k8s.io/component-base/zpages/features"

	"quorate.dev/apiserver/config"
	"quorate.dev/apiserver/metrics"
	"quorate.dev/apiserver/router"
	"quorate.dev/apiserver/serving"
)

// logDirectory is the directory that --enable-logs-handler serves.
const logDirectory = "/var/log"

// debugRoutes registers the paths that describe the process itself.
func (s *Server) debugRoutes(r *router.Router, listed index, constrained metrics.Constraints) {
	profiling := s.config.Serving.Profiling
	exported := metrics.Handler(metrics.Constrain(s.metrics, constrained), s.started)
	if profiling {
		exported = metrics.Resettable(s.metrics, exported)
	}
	r.Handle("/metrics", exported)
	r.Handle("/metrics/slis", s.health.Indicators(s.started, profiling))
	if utilfeature.DefaultFeatureGate.Enabled(zpagesfeatures.ComponentStatusz) {
		r.Handle("/statusz", serving.Statusz(Version(s.config), s.started, s.clock, listed.paths))
	}
	if utilfeature.DefaultFeatureGate.Enabled(zpagesfeatures.ComponentFlagz) {
		r.Handle("/flagz", serving.Flagz(flagValues(s.config)))
	}
	if s.config.Serving.LogsHandler {
		r.Handle("/logs", serving.LogFiles("/logs", logDirectory))
		r.HandlePrefix("/logs/", serving.LogFiles("/logs", logDirectory))
	}
	if !profiling {
		return
	}
	fairnessRoutes(r, s.background.flows)
	r.Handle("/debug/pprof", serving.Profiling())
	r.HandlePrefix("/debug/pprof/", serving.Profiling())
	r.Handle("/debug/flags", serving.DebugFlags())
	r.HandlePrefix("/debug/flags/", serving.DebugFlags())
	r.Handle("/debug/flags/v", serving.VerbosityFlag(s.verbosity))
}

// constraints returns the constraints of metrics in the flags and in the manifest file.
func constraints(c *config.Metrics) (metrics.Constraints, error) {
	labels := c.Labels()
	if c.LabelsManifest != "" {
		var err error
		if labels, err = metrics.ReadLabels(c.LabelsManifest); err == nil {
			err = errors.Join(config.ValidLabels(labels)...)
		}
		if err != nil {
			return metrics.Constraints{}, fmt.Errorf("--allow-metric-labels-manifest: %w", err)
		}
	}
	return metrics.Constraints{Disabled: c.Disabled, Labels: labels, ShowHidden: c.ShowHiddenFor != ""}, nil
}

// serveDebugSocket serves --debug-socket-path. As in kube-apiserver, a failure is logged and does not stop the replica.
func (s *cluster) serveDebugSocket(ctx context.Context, _ func()) error {
	path := s.config.Serving.DebugSocketPath
	if path == "" {
		return nil
	}
	if err := serving.ServeSocket(ctx, path, serving.DebugMux(s.verbosity)); err != nil {
		s.logger.Error(err, "The debug socket is not served", "path", path)
	}
	return nil
}

// flagValues returns the values of all flags by name. It replaces empty addresses with the address determined at the
// start.
func flagValues(c *config.Config) map[string]string {
	flags := map[string]string{}
	c.Flags().VisitAll(func(f *pflag.Flag) {
		flags[f.Name] = f.Value.String()
		if config.Classified(f) {
			flags[f.Name] = "CLASSIFIED"
		}
	})
	for _, name := range []string{"advertise-address", "external-hostname"} {
		if flags[name] == "" {
			flags[name] = advertised(c.Serving).String()
		}
	}
	return flags
}
