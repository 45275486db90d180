package peers

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// These are the values of the label "type", as in kube-apiserver.
const (
	errorEndpoint  = "endpoint_resolution"
	errorLeases    = "lease_list"
	errorAddress   = "hostport_resolution"
	errorDiscovery = "fetch_discovery"
)

// metrics has kube-apiserver's metrics of peers. The number of their label values is bounded by the resources that
// peers serve.
type metrics struct {
	rerouted   *prometheus.CounterVec
	errors     *prometheus.CounterVec
	syncErrors *prometheus.CounterVec
}

func newMetrics(registerer prometheus.Registerer) *metrics {
	with := promauto.With(registerer)
	return &metrics{
		rerouted: with.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_rerouted_request_total",
			Help: "Total number of requests that were proxied to a peer kube-apiserver because the local apiserver was not " +
				"capable of serving it, broken down by 'group', 'version', and 'resource' indicating the GVR of the request. If " +
				"all three are empty (\"\"), the request is a discovery request.",
		}, []string{"code", "group", "version", "resource"}),
		errors: with.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_peer_proxy_errors_total",
			Help: "Total number of errors encountered while proxying requests to a peer kube apiserver",
		}, []string{"type", "group", "version", "resource"}),
		syncErrors: with.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_peer_discovery_sync_errors_total",
			Help: "Total number of errors encountered while syncing discovery information from a peer kube-apiserver",
		}, []string{"type"}),
	}
}
