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

// logDirectory is what --enable-logs-handler serves.
const logDirectory = "/var/log"

// debugRoutes adds the paths that describe the process itself.
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
		r.Handle("/flagz", serving.Flagz(s.flags()))
	}
	if s.config.Serving.LogsHandler {
		r.Handle("/logs", serving.LogFiles("/logs", logDirectory))
		r.HandlePrefix("/logs/", serving.LogFiles("/logs", logDirectory))
	}
	if !profiling {
		return
	}
	s.fairnessRoutes(r)
	r.Handle("/debug/pprof", serving.Profiling())
	r.HandlePrefix("/debug/pprof/", serving.Profiling())
	r.Handle("/debug/flags", serving.DebugFlags())
	r.HandlePrefix("/debug/flags/", serving.DebugFlags())
	r.Handle("/debug/flags/v", serving.VerbosityFlag(s.verbosity))
}

// constraints returns those of the flags and of the manifest file.
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

// serveDebugSocket serves --debug-socket-path. As in kube-apiserver, a failure is logged and does not end the replica.
func (s *Server) serveDebugSocket(ctx context.Context, _ func()) error {
	path := s.config.Serving.DebugSocketPath
	if path == "" {
		return nil
	}
	if err := serving.ServeSocket(ctx, path, serving.DebugMux(s.verbosity)); err != nil {
		s.logger.Error(err, "The debug socket is not served", "path", path)
	}
	return nil
}

// flags returns the values of all flags by name, with the addresses that were determined at start-up.
func (s *Server) flags() map[string]string {
	flags := map[string]string{}
	s.config.Flags().VisitAll(func(f *pflag.Flag) {
		flags[f.Name] = f.Value.String()
		if config.Classified(f) {
			flags[f.Name] = "CLASSIFIED"
		}
	})
	for _, name := range []string{"advertise-address", "external-hostname"} {
		if flags[name] == "" {
			flags[name] = s.advertised().String()
		}
	}
	return flags
}
