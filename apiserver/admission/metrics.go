package admission

import (
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/metrics"
)

// These are the steps, with their names in kube-apiserver's metrics.
const (
	stepAdmit    = "admit"
	stepValidate = "validate"
)

// Metrics measures admission under the names of kube-apiserver's metrics. A nil *Metrics measures nothing.
type Metrics struct {
	clock   clock.PassiveClock
	plugins *prometheus.HistogramVec
	steps   *prometheus.HistogramVec
	summary *prometheus.SummaryVec

	mu        sync.RWMutex
	observers map[series][]prometheus.Observer
}

// series has the labels of an observation. plugin is empty for the observation of a whole step.
type series struct {
	plugin, step string
	operation    Operation
	rejected     bool
}

// summaryAge is how long an observation stays in the summary.
const summaryAge = 5 * time.Hour

// NewMetrics registers the metrics.
func NewMetrics(registerer prometheus.Registerer, clock clock.PassiveClock) *Metrics {
	buckets := []float64{0.005, 0.025, 0.1, 0.5, 1.0, 2.5}
	m := &Metrics{
		clock: clock,
		plugins: prometheus.NewHistogramVec(metrics.Histogram(prometheus.HistogramOpts{
			Name: "apiserver_admission_controller_admission_duration_seconds",
			Help: "[STABLE] Admission controller latency histogram in seconds, identified by name and broken out for each " +
				"operation and API resource and type (validate or admit).",
			Buckets: buckets,
		}), []string{"name", "type", "operation", "rejected"}),
		steps: prometheus.NewHistogramVec(metrics.Histogram(prometheus.HistogramOpts{
			Name: "apiserver_admission_step_admission_duration_seconds",
			Help: "[STABLE] Admission sub-step latency histogram in seconds, broken out for each operation and API " +
				"resource and step type (validate or admit).",
			Buckets: buckets,
		}), []string{"type", "operation", "rejected"}),
		summary: prometheus.NewSummaryVec(prometheus.SummaryOpts{
			Name: "apiserver_admission_step_admission_duration_seconds_summary",
			Help: "[ALPHA] Admission sub-step latency summary in seconds, broken out for each operation and API " +
				"resource and step type (validate or admit).",
			MaxAge:     summaryAge,
			Objectives: map[float64]float64{0.5: 0.05, 0.9: 0.01, 0.99: 0.001},
		}, []string{"type", "operation", "rejected"}),
		observers: map[series][]prometheus.Observer{},
	}
	registerer.MustRegister(m.plugins, m.steps, m.summary, metrics.OnReset(m.forget))
	return m
}

// now returns the current time, or the zero time if m is nil.
func (m *Metrics) now() (now time.Time) {
	if m != nil {
		now = m.clock.Now()
	}
	return now
}

// forget drops the cached observers after the metrics have been reset.
func (m *Metrics) forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.observers)
}

// plugin measures one plugin in a step. Plugins without a name are not measured.
func (m *Metrics) plugin(name, step string, operation Operation, rejected bool, duration time.Duration) {
	if m != nil && name != "" {
		m.observe(series{name, step, operation, rejected}, duration)
	}
}

// step measures a whole step.
func (m *Metrics) step(step string, operation Operation, rejected bool, duration time.Duration) {
	if m != nil {
		m.observe(series{"", step, operation, rejected}, duration)
	}
}

func (m *Metrics) observe(s series, duration time.Duration) {
	m.mu.RLock()
	observers := m.observers[s]
	m.mu.RUnlock()
	if observers == nil {
		observers = m.add(s)
	}
	for _, observer := range observers {
		observer.Observe(duration.Seconds())
	}
}

func (m *Metrics) add(s series) (observers []prometheus.Observer) {
	labels := []string{s.step, string(s.operation), strconv.FormatBool(s.rejected)}
	if s.plugin != "" {
		observers = []prometheus.Observer{m.plugins.WithLabelValues(append([]string{s.plugin}, labels...)...)}
	} else {
		observers = []prometheus.Observer{m.steps.WithLabelValues(labels...), m.summary.WithLabelValues(labels...)}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.observers[s] = observers
	return observers
}
