package operator

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
)

// managedHost is the label host of requests to clusters that the operator manages.
const managedHost = "managed"

// requestMetric counts the requests of client-go. It replaces controller-runtime's metric of the same name: client-go
// supports one metric per process, and in this binary the API server registers it. Requests to the pods of clusters
// share one label value, because pod addresses are unbounded and their series would never be deleted.
type requestMetric struct {
	*prometheus.CounterVec
	hosting string // address of the hosting cluster
}

func newRequestMetric(hosting string) requestMetric {
	return requestMetric{prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "rest_client_requests_total",
		// The registry requires controller-runtime's text and labels.
		Help: "Number of HTTP requests, partitioned by status code, method, and host.",
	}, []string{"code", "method", "host"}), hosting}
}

// Increment implements metrics.ResultMetric of client-go.
func (m requestMetric) Increment(_ context.Context, code, method, host string) {
	if host != m.hosting {
		host = managedHost
	}
	m.WithLabelValues(code, method, host).Inc()
}
