package kubelet

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	translation "k8s.io/apiserver/pkg/util/proxy/metrics"
)

// metrics has kube-apiserver's metrics of connections to kubelets.
type metrics struct {
	// logs counts requests by usage.
	logs        *prometheus.CounterVec
	logFailures prometheus.Counter
	// streams counts requests by subresource and proxy type.
	streams *prometheus.CounterVec
}

func newMetrics(registerer prometheus.Registerer) *metrics {
	f := promauto.With(registerer)
	// The metrics are exported by builtin.MeasureUpstream.
	translation.Register()
	return &metrics{
		logs: f.NewCounterVec(prometheus.CounterOpts{Name: "kube_apiserver_pod_logs_insecure_backend_total",
			Help: "[ALPHA] Total number of requests for pods/logs sliced by usage type: enforce_tls, skip_tls_allowed, " +
				"skip_tls_denied"}, []string{"usage"}),
		logFailures: f.NewCounter(prometheus.CounterOpts{
			Name: "kube_apiserver_pod_logs_backend_tls_failure_total",
			Help: "[ALPHA] Total number of requests for pods/logs that failed due to kubelet server TLS verification",
		}),
		streams: f.NewCounterVec(prometheus.CounterOpts{Name: "apiserver_websocket_streaming_requests_total",
			Help: "[ALPHA] Total number of WebSocket streaming requests (exec/attach/portforward) routed by the API server, " +
				"labeled by subresource and proxy_type. proxy_type is proxied_to_kubelet when the kubelet handles the request " +
				"directly; otherwise translated_at_apiserver."}, []string{"subresource", "proxy_type"}),
	}
}
