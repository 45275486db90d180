package apiserver

import (
	"context"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/config"
	"quorate.dev/apiserver/filters"
	"quorate.dev/apiserver/memory"
)

// databaseSize returns the size in bytes up to which the pages of the embedded member's database should stay in memory.
func databaseSize(c *config.Config) int64 {
	if c.Member.DataDirectory == "" {
		return 0
	}
	if c.Member.QuotaBackendBytes > 0 {
		return c.Member.QuotaBackendBytes
	}
	return config.Default().Member.QuotaBackendBytes
}

// memoryLimit is the limit of the process's memory, and the observation of its heap.
type memoryLimit struct {
	// bytes is 0 if there is no limit; pressure is nil then.
	bytes    int64
	pressure *memory.Pressure
}

// newMemoryLimit returns the limit of the process, which it exports and logs.
func newMemoryLimit(registerer prometheus.Registerer, logger logr.Logger) memoryLimit {
	limit := memory.Limit()
	gauge := promauto.With(registerer).NewGauge(prometheus.GaugeOpts{
		Name: "quorate_memory_limit_bytes",
		Help: "[ALPHA] Memory that the process may use, in bytes: GOMEMLIMIT, or the limit of the cgroup minus a reserve; " +
			"0: no limit.",
	})
	if limit == memory.Unlimited {
		return memoryLimit{}
	}
	gauge.Set(float64(limit))
	logger.Info("Memory is limited", "bytes", limit)
	return memoryLimit{limit, memory.NewPressure(limit, logger.WithName("memory"))}
}

// bound sets the options of filters that depend on the memory of the process.
func (l memoryLimit) bound(options *filters.Options) {
	if l.pressure != nil {
		options.Bodies, options.MemoryLevel = options.Bodies.Within(l.bytes), l.pressure.Level
	}
}

// watch observes the heap until ctx ends.
func (l memoryLimit) watch(ctx context.Context, clock clock.WithTicker) {
	if l.pressure != nil {
		l.pressure.Run(ctx, clock)
	}
}
