package filters

import (
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"quorate.dev/apiserver/metrics"
	"quorate.dev/apiserver/resource"
)

var (
	durationBuckets = []float64{
		0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60,
	}
	sliBuckets = durationBuckets[2:]

	impersonationLabels = []string{"mode", "decision"}

	targetLabels = []string{"verb", "group", "version", "resource", "subresource", "scope", "component"}
	dryRunLabels = []string{"verb", "dry_run", "group", "version", "resource", "subresource", "scope", "component"}
)

// Metrics has the metrics of the filters. Unless they start with quorate_, their names are kube-apiserver's.
type Metrics struct {
	requests     *prometheus.CounterVec
	durations    *prometheus.HistogramVec
	sli          *prometheus.HistogramVec
	sizes        *prometheus.HistogramVec
	longRunning  *prometheus.GaugeVec
	terminations *prometheus.CounterVec
	deprecated   *prometheus.GaugeVec
	aborts       *prometheus.CounterVec

	authenticationAttempts  *prometheus.CounterVec
	authenticationDurations *prometheus.HistogramVec
	authenticatedUsers      *prometheus.CounterVec
	authorizationAttempts   *prometheus.CounterVec
	authorizationDurations  *prometheus.HistogramVec

	impersonationAttempts       *prometheus.CounterVec
	impersonationDurations      *prometheus.HistogramVec
	impersonationChecks         *prometheus.CounterVec
	impersonationCheckDurations *prometheus.HistogramVec

	selfRequests    *prometheus.CounterVec
	requestBodies   *prometheus.HistogramVec
	filterDurations *prometheus.HistogramVec
	validations     *prometheus.HistogramVec
	filters         atomic.Pointer[filterSeries]
	// impersonationFilter is the impersonation filter's value of the label "filter", which depends on the feature gate.
	impersonationFilter string
	fieldValidations    atomic.Pointer[map[string]prometheus.Observer]

	readOnlyInFlight *highWater
	mutatingInFlight *highWater
	readOnlyQueued   *highWater
	mutatingQueued   *highWater
	bodyBytes        prometheus.Gauge
	stalledResponses prometheus.Gauge
	resetResponses   prometheus.Counter
	shedRequests     *prometheus.CounterVec

	authenticationOutcomes outcomes
	authorizationOutcomes  outcomes

	// catalog bounds the labels: only names of resources that it serves become labels.
	catalog *resource.CatalogHolder

	mu sync.Mutex
	// known is replaced as a whole, with mu locked.
	known atomic.Pointer[map[seriesKey]*series]
}

// NewMetrics registers the metrics. It must be called at most once per registerer. Names in requests become labels only
// if catalog serves them.
func NewMetrics(registerer prometheus.Registerer, catalog *resource.CatalogHolder) *Metrics {
	f := promauto.With(registerer)
	m := &Metrics{
		catalog: catalog, impersonationFilter: "impersonation",

		requests: f.NewCounterVec(prometheus.CounterOpts{Name: "apiserver_request_total",
			Help: "[STABLE] Counter of apiserver requests broken out for each verb, dry run value, group, version, resource, " +
				"scope, component, and HTTP response code."}, append(dryRunLabels[:len(dryRunLabels):len(dryRunLabels)], "code")),
		durations: f.NewHistogramVec(metrics.Histogram(prometheus.HistogramOpts{Name: "apiserver_request_duration_seconds",
			Buckets: durationBuckets, Help: "[STABLE] Response latency distribution in seconds for each verb, dry run value, " +
				"group, version, resource, subresource, scope and component."}), dryRunLabels),
		sli: f.NewHistogramVec(metrics.Histogram(prometheus.HistogramOpts{Name: "apiserver_request_sli_duration_seconds",
			Buckets: sliBuckets, Help: "[ALPHA] Response latency distribution (not counting webhook duration and priority & " +
				"fairness queue wait times) in seconds for each verb, group, version, resource, subresource, scope and " +
				"component."}), targetLabels),
		sizes: f.NewHistogramVec(metrics.Histogram(prometheus.HistogramOpts{Name: "apiserver_response_sizes",
			Buckets: prometheus.ExponentialBuckets(1000, 10, 7), Help: "[STABLE] Response size distribution in bytes for each " +
				"group, version, verb, resource, subresource, scope and component."}), targetLabels),
		longRunning: f.NewGaugeVec(prometheus.GaugeOpts{Name: "apiserver_longrunning_requests",
			Help: "[STABLE] Gauge of all active long-running apiserver requests broken out by verb, group, version, resource, " +
				"scope and component. Not all requests are tracked this way."}, targetLabels),
		terminations: f.NewCounterVec(prometheus.CounterOpts{Name: "apiserver_request_terminations_total",
			Help: "[ALPHA] Number of requests which apiserver terminated in self-defense."}, append(
			targetLabels[:len(targetLabels):len(targetLabels)], "code",
		)),
		deprecated: f.NewGaugeVec(prometheus.GaugeOpts{Name: "apiserver_requested_deprecated_apis",
			Help: "[STABLE] Gauge of deprecated APIs that have been requested, broken out by API group, version, resource, " +
				"subresource, and removed_release."}, []string{"group", "version", "resource", "subresource", "removed_release"}),
		aborts: f.NewCounterVec(prometheus.CounterOpts{Name: "apiserver_request_aborts_total",
			Help: "[ALPHA] Number of requests which apiserver aborted possibly due to a timeout, for each group, version, " +
				"verb, resource, subresource and scope"}, targetLabels[:6]),

		authenticationAttempts: f.NewCounterVec(prometheus.CounterOpts{Name: "authentication_attempts",
			Help: "[ALPHA] Counter of authenticated attempts."}, []string{"result"}),
		authenticationDurations: f.NewHistogramVec(metrics.Histogram(prometheus.HistogramOpts{
			Name:    "authentication_duration_seconds",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 15),
			Help:    "[ALPHA] Authentication duration in seconds broken out by result."}), []string{"result"}),
		authenticatedUsers: f.NewCounterVec(prometheus.CounterOpts{Name: "authenticated_user_requests",
			Help: "[ALPHA] Counter of authenticated requests broken out by username."}, []string{"username"}),
		authorizationAttempts: f.NewCounterVec(prometheus.CounterOpts{Name: "authorization_attempts_total",
			Help: "[ALPHA] Counter of authorization attempts broken down by result. It can be either 'allowed', 'denied', " +
				"'no-opinion' or 'error'."}, []string{"result"}),
		authorizationDurations: f.NewHistogramVec(metrics.Histogram(prometheus.HistogramOpts{
			Name:    "authorization_duration_seconds",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 15),
			Help:    "[ALPHA] Authorization duration in seconds broken out by result."}), []string{"result"}),

		impersonationAttempts: f.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_impersonation_attempts_total",
			Help: "[ALPHA] Total number of impersonation attempts split by mode and decision.",
		}, impersonationLabels),
		impersonationDurations: f.NewHistogramVec(metrics.Histogram(prometheus.HistogramOpts{
			Name: "apiserver_impersonation_attempts_duration_seconds", Buckets: prometheus.ExponentialBuckets(0.001, 2, 15),
			Help: "[ALPHA] Latency of impersonation attempts in seconds split by mode and decision.",
		}), impersonationLabels),
		impersonationChecks: f.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_impersonation_authorization_attempts_total",
			Help: "[ALPHA] Total number of authorization checks made by the impersonation handler split by mode and decision.",
		}, impersonationLabels),
		impersonationCheckDurations: f.NewHistogramVec(metrics.Histogram(prometheus.HistogramOpts{
			Name:    "apiserver_impersonation_authorization_attempts_duration_seconds",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 15),
			Help: "[ALPHA] Latency of authorization checks made by the impersonation handler in seconds split by mode and " +
				"decision.",
		}), impersonationLabels),

		readOnlyInFlight: &highWater{}, mutatingInFlight: &highWater{}, readOnlyQueued: &highWater{},
		mutatingQueued: &highWater{},
		bodyBytes: f.NewGauge(prometheus.GaugeOpts{
			Name: "quorate_request_body_bytes", Help: "[ALPHA] Bytes of request bodies currently held in memory.",
		}),
		stalledResponses: f.NewGauge(prometheus.GaugeOpts{
			Name: "quorate_stalled_responses", Help: "[ALPHA] Number of responses whose clients currently do not read them.",
		}),
		resetResponses: f.NewCounter(prometheus.CounterOpts{
			Name: "quorate_reset_responses_total",
			Help: "[ALPHA] Number of responses reset because their clients did not read them.",
		}),
		shedRequests: f.NewCounterVec(prometheus.CounterOpts{
			Name: "quorate_shed_requests_total",
			Help: "[ALPHA] Number of requests rejected because memory was nearly full, by level: high or critical.",
		}, []string{"level"}),
	}
	if utilfeature.DefaultFeatureGate.Enabled(features.ConstrainedImpersonation) {
		m.impersonationFilter = "constrainedimpersonation"
	}
	m.registerDetails(f)
	m.reset()
	registerer.MustRegister(metrics.OnReset(m.reset), metrics.OnForget(m.forget))
	for kind, mark := range map[string]*highWater{"readOnly": m.readOnlyInFlight, "mutating": m.mutatingInFlight} {
		f.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "apiserver_current_inflight_requests", ConstLabels: prometheus.Labels{"request_kind": kind},
			Help: "[STABLE] Maximal number of currently used inflight request limit of this apiserver per request kind in " +
				"last second.",
		}, mark.read)
	}
	for kind, mark := range map[string]*highWater{"readOnly": m.readOnlyQueued, "mutating": m.mutatingQueued} {
		f.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "apiserver_current_inqueue_requests", ConstLabels: prometheus.Labels{"request_kind": kind},
			Help: "[ALPHA] Maximal number of queued requests in this apiserver per request kind in last second.",
		}, mark.read)
	}
	return m
}

// reset drops all series and creates the series that always exist. It is also called whenever the registry resets the
// metrics.
func (m *Metrics) reset() {
	m.authenticationOutcomes.find(m.authenticationAttempts, m.authenticationDurations, "success", "failure", "error")
	m.authorizationOutcomes.find(m.authorizationAttempts, m.authorizationDurations, "allowed", "denied",
		"no-opinion", "error")
	m.findDetails()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.known.Store(&map[seriesKey]*series{})
}

// forget drops the cached series of a resource.
func (m *Metrics) forget(of schema.GroupResource) {
	m.mu.Lock()
	defer m.mu.Unlock()
	left := maps.Clone(*m.known.Load())
	maps.DeleteFunc(left, func(key seriesKey, _ *series) bool {
		return key.group == of.Group && key.resource == of.Resource
	})
	m.known.Store(&left)
}

// outcome has the metrics of attempts that have the same result.
type outcome struct {
	count    prometheus.Counter
	duration prometheus.Observer
}

// outcomes has the metrics of attempts by result.
type outcomes struct {
	byResult atomic.Pointer[map[string]outcome]
}

func (o *outcomes) find(counts *prometheus.CounterVec, durations *prometheus.HistogramVec, results ...string) {
	all := make(map[string]outcome, len(results))
	for _, result := range results {
		all[result] = outcome{count: counts.WithLabelValues(result), duration: durations.WithLabelValues(result)}
	}
	o.byResult.Store(&all)
}

func (o *outcomes) observe(result string, took time.Duration) {
	one := (*o.byResult.Load())[result]
	one.count.Inc()
	one.duration.Observe(took.Seconds())
}

// highWater is the maximum of the values observed since the last read.
type highWater struct{ mark atomic.Int64 }

func (h *highWater) observe(n int64) {
	for {
		mark := h.mark.Load()
		if n <= mark || h.mark.CompareAndSwap(mark, n) {
			return
		}
	}
}

func (h *highWater) read() float64 { return float64(h.mark.Swap(0)) }

// authenticated records an attempt to authenticate.
func (m *Metrics) authenticated(answer *authenticator.Response, ok bool, err error, took time.Duration) {
	switch {
	case err != nil:
		m.authenticationOutcomes.observe("error", took)
	case !ok:
		m.authenticationOutcomes.observe("failure", took)
	default:
		m.authenticationOutcomes.observe("success", took)
		m.authenticatedUsers.WithLabelValues(kindOfUser(answer.User.GetName())).Inc()
	}
}

// kindOfUser returns the label "username" of a user. As in kube-apiserver, it has few values, to bound the number of
// series.
func kindOfUser(name string) string {
	switch name {
	case "admin", "client", "kube_proxy", "kubelet", "system:serviceaccount:kube-system:default":
		return name
	}
	if strings.Contains(name, "@") {
		return "email_id"
	}
	return "other"
}

// authorized records an attempt to authorize.
func (m *Metrics) authorized(decision authorizer.Decision, err error, took time.Duration) {
	result := "no-opinion"
	switch {
	case decision == authorizer.DecisionAllow:
		result = "allowed"
	case err != nil:
		result = "error"
	case decision == authorizer.DecisionDeny:
		result = "denied"
	}
	m.authorizationOutcomes.observe(result, took)
}

// impersonated records an attempt to impersonate. mode is empty if no mode allowed it.
func (m *Metrics) impersonated(mode string, allowed bool, took time.Duration) {
	m.impersonationAttempts.WithLabelValues(mode, decisionLabel(allowed)).Inc()
	m.impersonationDurations.WithLabelValues(mode, decisionLabel(allowed)).Observe(took.Seconds())
}

// impersonationChecked records one authorization check of a mode of impersonation.
func (m *Metrics) impersonationChecked(mode string, allowed bool, took time.Duration) {
	m.impersonationChecks.WithLabelValues(mode, decisionLabel(allowed)).Inc()
	m.impersonationCheckDurations.WithLabelValues(mode, decisionLabel(allowed)).Observe(took.Seconds())
}

func decisionLabel(allowed bool) string {
	if allowed {
		return "allowed"
	}
	return "denied"
}
