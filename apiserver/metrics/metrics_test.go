package metrics

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"k8s.io/apimachinery/pkg/version"
)

func TestRegistryIsServed(t *testing.T) {
	w := httptest.NewRecorder()
	Handler(NewRegistry(version.Info{Major: "1", Minor: "36"}), time.Now()).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for _, want := range []string{"go_goroutines ", "process_resident_memory_bytes ", `kubernetes_build_info{`, `minor="36"`} {
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s is missing", want)
		}
	}
}

// TestReset empties the vectors, one of which somebody keeps a series of.
func TestReset(t *testing.T) {
	registry := NewRegistry(version.Info{})
	factory := promauto.With(registry)
	vector := factory.NewCounterVec(prometheus.CounterOpts{Name: "some_total"}, []string{"of"})
	factory.NewCounter(prometheus.CounterOpts{Name: "one_total"}).Inc()
	kept := vector.WithLabelValues("kept")
	registry.MustRegister(OnReset(func() { kept = vector.WithLabelValues("kept") }))
	vector.WithLabelValues("other").Inc()
	kept.Inc()
	handler := Resettable(registry, Handler(registry, time.Now()))
	ask := func(method string) string {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(method, "/metrics", nil))
		return w.Body.String()
	}
	if answer := ask("DELETE"); answer != "metrics reset\n" {
		t.Errorf("reset: %s", answer)
	}
	kept.Inc()
	answer := ask("GET")
	if strings.Contains(answer, `of="other"`) || !strings.Contains(answer, `some_total{of="kept"} 1`) || !strings.Contains(answer, "one_total 1") {
		t.Errorf("after a reset: %s", answer)
	}
}
