package metrics

import (
	"io"
	"net/http"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// Registry is that of one server. Its vectors can be emptied.
type Registry struct {
	*prometheus.Registry

	mu         sync.Mutex
	resettable []resettable
}

// resettable are the vectors, and who keeps series of them.
type resettable interface{ Reset() }

// Register implements prometheus.Registerer.
func (r *Registry) Register(collector prometheus.Collector) error {
	if err := r.Registry.Register(collector); err != nil {
		return err
	}
	if one, ok := collector.(resettable); ok {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.resettable = append(r.resettable, one)
	}
	return nil
}

// MustRegister implements prometheus.Registerer.
func (r *Registry) MustRegister(collectors ...prometheus.Collector) {
	for _, collector := range collectors {
		if err := r.Register(collector); err != nil {
			panic(err)
		}
	}
}

// Reset empties all vectors, in the order in which they were registered.
func (r *Registry) Reset() {
	r.mu.Lock()
	all := slices.Clone(r.resettable)
	r.mu.Unlock()
	for _, one := range all {
		one.Reset()
	}
}

// OnReset is registered, after its vectors, by who keeps series of them: those are not seen any more then. As a collector
// it has nothing to tell.
type OnReset func()

// Reset forgets the series.
func (f OnReset) Reset() { f() }

// Describe implements prometheus.Collector.
func (OnReset) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (OnReset) Collect(chan<- prometheus.Metric) {}

// Resettable answers DELETE by a reset, and everything else as next does.
func Resettable(registry *Registry, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodDelete {
			next.ServeHTTP(w, r)
			return
		}
		registry.Reset()
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(w, "metrics reset\n")
	})
}
