package filters

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"k8s.io/apiserver/pkg/authentication/user"

	"quorate.dev/apiserver/metrics"
	"quorate.dev/apiserver/request"
)

// filterSeries have the latencies of filters without the latencies of the filters and the handler that they call.
type filterSeries struct {
	authentication, audit, impersonation, authorization prometheus.Observer
}

// registerDetails registers the metrics of filters, bodies and the server's own requests.
func (m *Metrics) registerDetails(f promauto.Factory) {
	m.selfRequests = f.NewCounterVec(prometheus.CounterOpts{
		Name: "apiserver_selfrequest_total",
		Help: "[ALPHA] Counter of apiserver self-requests broken out for each verb, API resource and subresource.",
	}, []string{"verb", "group", "resource", "subresource"})
	m.requestBodies = f.NewHistogramVec(metrics.Histogram(prometheus.HistogramOpts{
		Name:    "apiserver_request_body_size_bytes",
		Help:    "[ALPHA] Apiserver request body size in bytes broken out by resource and verb.",
		Buckets: prometheus.LinearBuckets(50000, 100000, 31),
	}), []string{"group", "resource", "verb"})
	m.filterDurations = f.NewHistogramVec(metrics.Histogram(prometheus.HistogramOpts{
		Name:    "apiserver_request_filter_duration_seconds",
		Help:    "[ALPHA] Request filter latency distribution in seconds, for each filter type",
		Buckets: []float64{0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 5.0, 10.0, 15.0, 30.0},
	}), []string{"filter"})
	m.validations = f.NewHistogramVec(metrics.Histogram(prometheus.HistogramOpts{
		Name:    "field_validation_request_duration_seconds",
		Help:    "[ALPHA] Response latency distribution in seconds for each field validation value",
		Buckets: sliBuckets,
	}), []string{"field_validation"})
}

// findDetails looks up the series of registerDetails that always exist.
func (m *Metrics) findDetails() {
	m.filters.Store(&filterSeries{
		authentication: m.filterDurations.WithLabelValues("authentication"),
		audit:          m.filterDurations.WithLabelValues("audit"),
		authorization:  m.filterDurations.WithLabelValues("authorization"),
		impersonation:  m.filterDurations.WithLabelValues(m.impersonationFilter),
	})
	validations := map[string]prometheus.Observer{}
	for _, value := range []string{"", "Ignore", "Warn", "Strict", invalidLabel} {
		validations[value] = m.validations.WithLabelValues(value)
	}
	m.fieldValidations.Store(&validations)
}

// invalidLabel is the label for parameters of clients whose value is invalid.
const invalidLabel = "invalid"

// validated records the duration of a request whose body is validated.
func (m *Metrics) validated(record *request.Record, took time.Duration) {
	value := ""
	if record.HasParameter("fieldValidation") {
		value = invalidLabel
		if values := record.Query()["fieldValidation"]; len(values) == 1 {
			value = values[0]
		}
	}
	validations := *m.fieldValidations.Load()
	observer := validations[value]
	if observer == nil {
		observer = validations[invalidLabel]
	}
	observer.Observe(took.Seconds())
}

// selfRequested counts a request that this server has sent to itself.
func (m *Metrics) selfRequested(record *request.Record, key *seriesKey) {
	if record.User != nil && record.User.GetName() == user.APIServerUser {
		m.selfRequests.WithLabelValues(key.verb, key.group, key.resource, key.subresource).Inc()
	}
}

// bodyVerbs maps the verbs of seriesKey to the label "verb" of requests with bodies.
var bodyVerbs = map[string]string{
	http.MethodPost: "create", http.MethodPut: "update", http.MethodPatch: "patch", "APPLY": "patch",
	http.MethodDelete: "delete",
}

// bodyVerb returns the label "verb" of requests with bodies, or "" if requests of the key have no bodies.
func (k *seriesKey) bodyVerb() string {
	if k.resource == "" {
		return ""
	}
	if k.verb == http.MethodDelete && k.scope != "resource" {
		return "delete_collection"
	}
	return bodyVerbs[k.verb]
}
