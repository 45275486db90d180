package authentication

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	certificateLife prometheus.Histogram
}

func newMetrics(registerer prometheus.Registerer) *metrics {
	return &metrics{
		certificateLife: promauto.With(registerer).NewHistogram(prometheus.HistogramOpts{
			Name: "apiserver_client_certificate_expiration_seconds",
			Help: "Distribution of the remaining lifetime on the certificate used to authenticate a request.",
			// From half an hour to a year.
			Buckets: []float64{0, 1800, 3600, 7200, 21600, 43200, 86400, 172800, 345600, 604800, 2592000, 7776000, 15552000, 31104000},
		}),
	}
}
