package authorization

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type decisionMetrics struct {
	decisions *prometheus.CounterVec
}

func newDecisionMetrics(registerer prometheus.Registerer) *decisionMetrics {
	return &decisionMetrics{decisions: promauto.With(registerer).NewCounterVec(prometheus.CounterOpts{
		Name: "apiserver_authorization_decisions_total",
		Help: "[ALPHA] Total number of terminal decisions made by an authorizer split by authorizer type, name, and " +
			"decision.",
	}, []string{"type", "name", "decision"})}
}

func (m *decisionMetrics) instrument(kind string, mode Named) instrumented {
	return instrumented{
		Named:   mode,
		allowed: m.decisions.WithLabelValues(kind, mode.Name, "allowed"),
		denied:  m.decisions.WithLabelValues(kind, mode.Name, "denied"),
	}
}
