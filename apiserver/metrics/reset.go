package metrics

import (
	"io"
	"net/http"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Registry is the metrics registry of one server. Its vectors can be reset, and can forget the series of a resource.
type Registry struct {
	*prometheus.Registry

	mu         sync.Mutex
	resettable []resettable
	vectors    []vector
	forgetters []forgetter
}

// vector is implemented by all vectors of the Prometheus client.
type vector interface {
	DeletePartialMatch(labels prometheus.Labels) int
}

// forgetter is implemented by collectors that are not vectors, and by the OnForget functions of packages that cache
// their series.
type forgetter interface{ Forget(of schema.GroupResource) }

// resettable is implemented by vectors, and by the OnReset functions of packages that cache their series.
type resettable interface{ Reset() }

// Register implements prometheus.Registerer.
func (r *Registry) Register(collector prometheus.Collector) error {
	if err := r.Registry.Register(collector); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if one, ok := collector.(resettable); ok {
		r.resettable = append(r.resettable, one)
	}
	if one, ok := collector.(vector); ok {
		r.vectors = append(r.vectors, one)
	}
	if one, ok := collector.(forgetter); ok {
		r.forgetters = append(r.forgetters, one)
	}
	return nil
}

// Forget drops the series of a resource that is no longer served, so that definitions that are created and deleted
// again and again do not fill the memory. kube-apiserver keeps such series. A vector is concerned if it has the labels
// "group" and "resource"; all forgetters are called after the vectors.
func (r *Registry) Forget(of schema.GroupResource) {
	r.mu.Lock()
	vectors, forgetters := slices.Clone(r.vectors), slices.Clone(r.forgetters)
	r.mu.Unlock()
	labels := prometheus.Labels{"group": of.Group, "resource": of.Resource}
	for _, one := range vectors {
		one.DeletePartialMatch(labels)
	}
	for _, one := range forgetters {
		one.Forget(of)
	}
}

// OnForget is called after the series of a resource have been dropped, so that a package can drop cached series. As a
// prometheus.Collector it collects nothing.
type OnForget func(of schema.GroupResource)

// Forget calls the function.
func (f OnForget) Forget(of schema.GroupResource) { f(of) }

// Describe implements prometheus.Collector.
func (OnForget) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (OnForget) Collect(chan<- prometheus.Metric) {}

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
