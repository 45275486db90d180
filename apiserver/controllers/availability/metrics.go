package availability

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metrics has kube-aggregator's metrics of availability.
type metrics struct {
	unavailable *prometheus.GaugeVec
	transitions *prometheus.CounterVec
}

func newMetrics(registerer prometheus.Registerer) *metrics {
	f := promauto.With(registerer)
	return &metrics{
		unavailable: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "aggregator_unavailable_apiservice",
			Help: "[ALPHA] Gauge of APIServices which are marked as unavailable broken down by APIService name.",
		}, []string{"name"}),
		transitions: f.NewCounterVec(prometheus.CounterOpts{
			Name: "aggregator_unavailable_apiservice_total",
			Help: "[ALPHA] Counter of APIServices which are marked as unavailable broken down by APIService name and reason.",
		}, []string{"name", "reason"}),
	}
}

func (m *metrics) set(name string, available bool) {
	value := 1.0
	if available {
		value = 0
	}
	m.unavailable.WithLabelValues(name).Set(value)
}

func (m *metrics) forget(name string) { m.unavailable.DeleteLabelValues(name) }

func (m *metrics) becameUnavailable(name, reason string) {
	m.transitions.WithLabelValues(name, reason).Inc()
}
