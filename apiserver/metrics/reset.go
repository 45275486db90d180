package metrics

import (
	"io"
	"net/http"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// Registry is the metrics registry of one server. Its vectors can be reset.
type Registry struct {
	*prometheus.Registry

	mu         sync.Mutex
	resettable []resettable
}

// resettable is implemented by vectors, and by the OnReset functions of packages that cache their series.
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

// Reset resets all vectors and calls all OnReset functions, in the order of their registration.
func (r *Registry) Reset() {
	r.mu.Lock()
	all := slices.Clone(r.resettable)
	r.mu.Unlock()
	for _, one := range all {
		one.Reset()
	}
}

// OnReset is called after the vectors of a package have been reset, so that the package can drop cached series, which
// are no longer collected. It must be registered after these vectors. As a prometheus.Collector it collects nothing.
type OnReset func()

// Reset calls the function.
func (f OnReset) Reset() { f() }

// Describe implements prometheus.Collector.
func (OnReset) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (OnReset) Collect(chan<- prometheus.Metric) {}

// Resettable resets the registry on DELETE, and passes all other requests to next.
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
