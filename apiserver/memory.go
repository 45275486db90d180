package apiserver

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"quorate.dev/apiserver/config"
	"quorate.dev/apiserver/filters"
	"quorate.dev/apiserver/memory"
)

// databaseSize returns the size up to which the pages of the embedded member's database should stay in memory.
func databaseSize(c *config.Config) int64 {
	if c.Member.DataDirectory == "" {
		return 0
	}
	if c.Member.QuotaBackendBytes > 0 {
		return c.Member.QuotaBackendBytes
	}
	return config.Default().Member.QuotaBackendBytes
}

// composeMemory prepares the observation of the heap.
func (s *Server) composeMemory() {
	limit := memory.Limit()
	gauge := promauto.With(s.metrics).NewGauge(prometheus.GaugeOpts{
		Name: "quorate_memory_limit_bytes",
		Help: "[ALPHA] Memory that the process may use, in bytes: GOMEMLIMIT, or the limit of the cgroup minus a reserve; 0: no limit.",
	})
	if limit == memory.Unlimited {
		return
	}
	gauge.Set(float64(limit))
	s.logger.Info("Memory is limited", "bytes", limit)
	s.memoryLimit, s.pressure = limit, memory.NewPressure(limit, s.logger.WithName("memory"))
}

// boundMemory sets the bounds of the filters that depend on the memory of the process.
func (s *Server) boundMemory(options *filters.Options) {
	if s.pressure != nil {
		options.Bodies, options.MemoryLevel = options.Bodies.Within(s.memoryLimit), s.pressure.Level
	}
}

// watchMemory observes the heap until ctx ends.
func (s *Server) watchMemory(ctx context.Context) {
	if s.pressure != nil {
		s.pressure.Run(ctx, s.clock)
	}
}
