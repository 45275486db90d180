package metrics

import (
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
)

func TestRegistryIsServed(t *testing.T) {
	w := httptest.NewRecorder()
	Handler(NewRegistry(version.Info{Major: "1", Minor: "36"}), time.Now()).ServeHTTP(w,
		httptest.NewRequest("GET", "/metrics", nil))
	for _, want := range []string{`kubernetes_build_info{`, `minor="36"`} {
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s is missing", want)
		}
	}
}

// TestReset resets vectors, a series of which is cached.
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
	if strings.Contains(answer, `of="other"`) || !strings.Contains(answer, `some_total{of="kept"} 1`) ||
		!strings.Contains(answer, "one_total 1") {
		t.Errorf("after a reset: %s", answer)
	}
}

// TestForget drops the series of one resource in vectors that have its labels, and in a cache.
func TestForget(t *testing.T) {
	registry := NewRegistry(version.Info{})
	factory := promauto.With(registry)
	requests := factory.NewHistogramVec(prometheus.HistogramOpts{Name: "requests"}, []string{"verb", "group", "resource"})
	others := factory.NewCounterVec(prometheus.CounterOpts{Name: "others_total"}, []string{"resource"})
	var forgotten []schema.GroupResource
	registry.MustRegister(OnForget(func(of schema.GroupResource) { forgotten = append(forgotten, of) }))
	for _, labels := range [][]string{
		{"GET", "a.test", "things"}, {"LIST", "a.test", "things"}, {"GET", "b.test", "things"}, {"GET", "a.test", "kinds"},
	} {
		requests.WithLabelValues(labels...).Observe(1)
	}
	others.WithLabelValues("things").Inc()
	things := schema.GroupResource{Group: "a.test", Resource: "things"}
	registry.Forget(things)
	if left := testutil.CollectAndCount(requests); left != 2 {
		t.Errorf("%d series are left, want 2", left)
	}
	if testutil.CollectAndCount(others) != 1 || !slices.Equal(forgotten, []schema.GroupResource{things}) {
		t.Errorf("a vector without the label group has changed, or %v was forgotten", forgotten)
	}
}

// TestFromUpstream collects the families with the given prefixes from another registry.
func TestFromUpstream(t *testing.T) {
	process := NewRegistry(version.Info{})
	factory := promauto.With(process)
	passed := factory.NewCounterVec(prometheus.CounterOpts{Name: "passed_total", Help: "Help."}, []string{"of"})
	passed.WithLabelValues("a").Add(2)
	factory.NewHistogram(prometheus.HistogramOpts{Name: "passed_seconds", Buckets: []float64{1}}).Observe(0.5)
	factory.NewCounter(prometheus.CounterOpts{Name: "kept_total"}).Inc()
	registry := NewRegistry(version.Info{})
	registry.MustRegister(FromUpstream(process, "passed_"))
	scrape := func() string {
		w := httptest.NewRecorder()
		Handler(registry, time.Now()).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		return w.Body.String()
	}
	answer := scrape()
	for _, want := range []string{
		"# HELP passed_total Help.\n# TYPE passed_total counter\n" + `passed_total{of="a"} 2`,
		`passed_seconds_bucket{le="1"} 1`,
	} {
		if !strings.Contains(answer, want) {
			t.Errorf("%s is missing:\n%s", want, answer)
		}
	}
	if strings.Contains(answer, "kept_total") {
		t.Error("a family without a prefix was collected")
	}
	registry.Reset()
	if strings.Contains(scrape(), "passed_total{") {
		t.Error("the other registry was not reset")
	}
}
