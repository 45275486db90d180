package apiserver

import (
	"context"
	"errors"
	"flag"
	"net/http"
	"os"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/go-logr/logr"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/klog/v2"

	"quorate.dev/apiserver/admission/plugins"
	"quorate.dev/apiserver/builtin"
	"quorate.dev/apiserver/config"
	"quorate.dev/apiserver/memory"
	"quorate.dev/apiserver/preflight"
	"quorate.dev/apiserver/registry/change"
	"quorate.dev/panics"
)

// garbageCollectionPercent replaces Go's default of 100. Most of the heap is encoded objects, which are long-lived and
// contain few pointers, so that more frequent garbage collections cost little and keep the process small.
const garbageCollectionPercent = 50

// setKlogModules applies --vmodule to libraries that log through klog.
func setKlogModules(vmodule string) error {
	flags := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(flags)
	return flags.Set("vmodule", vmodule)
}

// reportUpstreamPanics makes background work of upstream's libraries continue after a panic, as far as its authors
// provided for it: a queue skips the object, a loop runs again. Panics are logged by upstream, and counted.
// kube-apiserver ends; an object that makes a controller panic would end one replica after the other. Only the command
// calls it, once.
func reportUpstreamPanics(reporter *panics.Reporter) {
	const loop = "upstream"
	reporter.Expect(loop)
	utilruntime.ReallyCrash = false
	utilruntime.PanicHandlers = append(utilruntime.PanicHandlers, func(_ context.Context, value any) {
		if err, ok := value.(error); !ok || !errors.Is(err, http.ErrAbortHandler) {
			reporter.Count(loop)
		}
	})
}

// configureProcess applies every setting that is global to the process because upstream's libraries keep it in package
// variables: Go's memory limit, the profile of blocking events, klog's logger, feature gates, capabilities, the limits
// of JSON patches, and the tolerations of the DefaultTolerationSeconds plugin. Only the command calls it, once, before
// New. The exceptions are gRPC's logger, which main silences for all commands, and klog's verbosity, which
// /debug/flags/v changes.
func configureProcess(c *config.Config, logger logr.Logger, level *verbosity) error {
	klog.SetLogger(logger)
	level.SetVerbosity(uint32(max(c.Logging.Verbosity, 0)))
	if err := setKlogModules(c.Logging.VModule); err != nil {
		return err
	}
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(garbageCollectionPercent)
	}
	memory.Configure(databaseSize(c))
	if c.Serving.Profiling && c.Serving.ContentionProfiling {
		runtime.SetBlockProfileRate(1)
	}
	change.LimitPatches()
	discardTracingMetrics()
	err := plugins.SetDefaultTolerations(
		int64(c.Admission.NotReadyToleration/time.Second), int64(c.Admission.UnreachableToleration/time.Second))
	if err != nil {
		return err
	}
	if err := builtin.Configure(builtin.Settings{
		AllowPrivileged: c.Admission.AllowPrivileged, Gates: c.API.FeatureGates, Version: c.Compatibility.Effective(),
	}); err != nil {
		return err
	}
	if err := checkPeers(c.Peers); err != nil {
		return err
	}
	if err := preflight.Logging(utilfeature.DefaultFeatureGate, c.Logging); err != nil {
		return err
	}
	return preflight.UIDHeaders(utilfeature.DefaultFeatureGate, c)
}
