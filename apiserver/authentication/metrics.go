package authentication

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"quorate.dev/apiserver/metrics"
)

// certificateMetrics has the metrics of client certificates.
type certificateMetrics struct {
	certificateLife prometheus.Histogram
}

func newCertificateMetrics(registerer prometheus.Registerer) *certificateMetrics {
	return &certificateMetrics{
		certificateLife: promauto.With(registerer).NewHistogram(metrics.Histogram(prometheus.HistogramOpts{
			Name: "apiserver_client_certificate_expiration_seconds",
			Help: "[ALPHA] Distribution of the remaining lifetime on the certificate used to authenticate a request.",
			// The buckets range from half an hour to a year.
			Buckets: []float64{
				0, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 345600, 604800, 2592000, 7776000, 15552000, 31104000,
			},
		})),
	}
}

// cacheMetrics has the metrics of token caches, with kube-apiserver's names. All caches of a server share them.
type cacheMetrics struct {
	hits, misses      prometheus.Counter
	hitTime, missTime prometheus.Observer
	fetches, failures prometheus.Counter
	inFlight, blocked prometheus.Gauge
}

func newCacheMetrics(registerer prometheus.Registerer) *cacheMetrics {
	f := promauto.With(registerer)
	const prefix = "authentication_token_cache_"
	status := []string{"status"}
	requests := f.NewCounterVec(prometheus.CounterOpts{
		Name: prefix + "request_total", Help: "[ALPHA] Number of tokens looked up in the cache by status, hit or miss.",
	}, status)
	durations := f.NewHistogramVec(metrics.Histogram(prometheus.HistogramOpts{
		Name: prefix + "request_duration_seconds",
		Help: "[ALPHA] Duration of the authentication of a token by status, hit or miss.",
	}), status)
	fetches := f.NewCounterVec(prometheus.CounterOpts{
		Name: prefix + "fetch_total", Help: "[ALPHA] Number of tokens that were not in the cache by status, ok or error.",
	}, status)
	active := f.NewGaugeVec(prometheus.GaugeOpts{
		Name: prefix + "active_fetch_count",
		Help: "[ALPHA] Number of authentications in flight, and of requests blocked by them, by status.",
	}, status)
	return &cacheMetrics{
		hits: requests.WithLabelValues("hit"), misses: requests.WithLabelValues("miss"),
		hitTime: durations.WithLabelValues("hit"), missTime: durations.WithLabelValues("miss"),
		fetches: fetches.WithLabelValues("ok"), failures: fetches.WithLabelValues("error"),
		inFlight: active.WithLabelValues("in_flight"), blocked: active.WithLabelValues("blocked"),
	}
}

func (m *cacheMetrics) requested(hit bool, took time.Duration) {
	if hit {
		m.hits.Inc()
		m.hitTime.Observe(took.Seconds())
		return
	}
	m.misses.Inc()
	m.missTime.Observe(took.Seconds())
}

func (m *cacheMetrics) fetched(err error) {
	if err != nil {
		m.failures.Inc()
		return
	}
	m.fetches.Inc()
}
