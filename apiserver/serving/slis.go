package serving

import (
	"fmt"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Indicators serves /metrics/slis, the results of the health checks as metrics. If resettable is set, DELETE resets the
// metrics. started is the start time of the process.
func (h *Health) Indicators(started time.Time, resettable bool) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(h.results, h.counts)
	return indicators{
		health: h, resettable: resettable,
		metrics: promhttp.HandlerFor(registry, promhttp.HandlerOpts{ProcessStartTime: started}),
	}
}

type indicators struct {
	health     *Health
	resettable bool
	metrics    http.Handler
}

func (i indicators) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case !i.resettable || r.Method == http.MethodGet:
		i.metrics.ServeHTTP(w, r)
	case r.Method == http.MethodDelete:
		i.health.results.Reset()
		i.health.counts.Reset()
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = fmt.Fprintln(w, "metrics reset")
	}
}
