package discovery

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metrics has kube-apiserver's metrics of peer-aggregated discovery.
type metrics struct{ peerHits, peerMisses, noPeer prometheus.Counter }

func newMetrics(registerer prometheus.Registerer) metrics {
	counter := func(name, help string) prometheus.Counter {
		return promauto.With(registerer).NewCounter(prometheus.CounterOpts{Name: "aggregator_discovery_" + name, Help: help})
	}
	return metrics{
		peerHits: counter("peer_aggregated_cache_hits_total",
			"[ALPHA] Counter of number of times discovery was served from peer-aggregated cache"),
		peerMisses: counter("peer_aggregated_cache_misses_total",
			"[ALPHA] Counter of number of times discovery was aggregated across all API servers"),
		noPeer: counter("nopeer_requests_total",
			"[ALPHA] Counter of number of times no-peer (non peer-aggregated) discovery was requested"),
	}
}
