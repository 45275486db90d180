package kubelet

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	dto "github.com/prometheus/client_model/go"
	translation "k8s.io/apiserver/pkg/util/proxy/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

// metrics are kube-apiserver's of connections to kubelets.
type metrics struct {
	logs        *prometheus.CounterVec // by whether the kubelet's certificate is verified
	logFailures prometheus.Counter
	streams     *prometheus.CounterVec // by subresource, and who speaks WebSocket
}

func newMetrics(registerer prometheus.Registerer) *metrics {
	f := promauto.With(registerer)
	translation.Register()
	registerer.MustRegister(translated{legacyregistry.DefaultGatherer})
	return &metrics{
		logs:        f.NewCounterVec(prometheus.CounterOpts{Name: "kube_apiserver_pod_logs_insecure_backend_total", Help: "Total number of requests for pods/logs sliced by usage type: enforce_tls, skip_tls_allowed, skip_tls_denied"}, []string{"usage"}),
		logFailures: f.NewCounter(prometheus.CounterOpts{Name: "kube_apiserver_pod_logs_backend_tls_failure_total", Help: "Total number of requests for pods/logs that failed due to kubelet server TLS verification"}),
		streams:     f.NewCounterVec(prometheus.CounterOpts{Name: "apiserver_websocket_streaming_requests_total", Help: "Total number of WebSocket streaming requests (exec/attach/portforward) routed by the API server, labeled by subresource and proxy_type. proxy_type is proxied_to_kubelet when the kubelet handles the request directly; otherwise translated_at_apiserver."}, []string{"subresource", "proxy_type"}),
	}
}

// translated are what upstream's translators of WebSockets have counted, by the code of the response, in a registry of
// the whole process.
type translated struct{ process prometheus.Gatherer }

var (
	commands = prometheus.NewDesc("apiserver_stream_translator_requests_total",
		"Total number of requests that were handled by the StreamTranslatorProxy, which processes streaming RemoteCommand/V5", []string{"code"}, nil)
	tunnels = prometheus.NewDesc("apiserver_stream_tunnel_requests_total",
		"Total number of requests that were handled by the StreamTunnelProxy, which processes streaming PortForward/V2", []string{"code"}, nil)
)

// Describe implements prometheus.Collector.
func (t translated) Describe(descriptions chan<- *prometheus.Desc) {
	descriptions <- commands
	descriptions <- tunnels
}

// Collect implements prometheus.Collector.
func (t translated) Collect(values chan<- prometheus.Metric) {
	families, err := t.process.Gather()
	if err != nil {
		values <- prometheus.NewInvalidMetric(commands, err)
		return
	}
	for _, family := range families {
		switch family.GetName() {
		case "apiserver_stream_translator_requests_total":
			copyCounters(values, commands, family)
		case "apiserver_stream_tunnel_requests_total":
			copyCounters(values, tunnels, family)
		}
	}
}

// copyCounters hands on the counters of a family with one label.
func copyCounters(values chan<- prometheus.Metric, description *prometheus.Desc, family *dto.MetricFamily) {
	for _, metric := range family.GetMetric() {
		values <- prometheus.MustNewConstMetric(description, prometheus.CounterValue, metric.GetCounter().GetValue(), metric.GetLabel()[0].GetValue())
	}
}
