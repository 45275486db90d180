package filters

import (
	"maps"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"quorate.dev/apiserver/metrics"
	"quorate.dev/apiserver/request"
)

var (
	durationBuckets = []float64{0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60}
	sliBuckets      = durationBuckets[2:]

	targetLabels = []string{"verb", "group", "version", "resource", "subresource", "scope", "component"}
	dryRunLabels = []string{"verb", "dry_run", "group", "version", "resource", "subresource", "scope", "component"}
)

// Metrics are what the filters measure, under kube-apiserver's names.
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

	readOnlyInFlight *highWater
	mutatingInFlight *highWater

	authenticationOutcomes outcomes
	authorizationOutcomes  outcomes

	mu    sync.Mutex
	known atomic.Pointer[map[seriesKey]*series] // replaced, never changed
}

// NewMetrics declares the metrics. It may be called once per registerer.
func NewMetrics(registerer prometheus.Registerer) *Metrics {
	f := promauto.With(registerer)
	m := &Metrics{
		requests:     f.NewCounterVec(prometheus.CounterOpts{Name: "apiserver_request_total", Help: "Counter of apiserver requests broken out for each verb, dry run value, group, version, resource, scope, component, and HTTP response code."}, append(dryRunLabels[:len(dryRunLabels):len(dryRunLabels)], "code")),
		durations:    f.NewHistogramVec(prometheus.HistogramOpts{Name: "apiserver_request_duration_seconds", Buckets: durationBuckets, Help: "Response latency distribution in seconds for each verb, dry run value, group, version, resource, subresource, scope and component."}, dryRunLabels),
		sli:          f.NewHistogramVec(prometheus.HistogramOpts{Name: "apiserver_request_sli_duration_seconds", Buckets: sliBuckets, Help: "Response latency distribution (not counting webhook duration and priority & fairness queue wait times) in seconds for each verb, group, version, resource, subresource, scope and component."}, targetLabels),
		sizes:        f.NewHistogramVec(prometheus.HistogramOpts{Name: "apiserver_response_sizes", Buckets: prometheus.ExponentialBuckets(1000, 10, 7), Help: "Response size distribution in bytes for each group, version, verb, resource, subresource, scope and component."}, targetLabels),
		longRunning:  f.NewGaugeVec(prometheus.GaugeOpts{Name: "apiserver_longrunning_requests", Help: "Gauge of all active long-running apiserver requests broken out by verb, group, version, resource, scope and component. Not all requests are tracked this way."}, targetLabels),
		terminations: f.NewCounterVec(prometheus.CounterOpts{Name: "apiserver_request_terminations_total", Help: "Number of requests which apiserver terminated in self-defense."}, append(targetLabels[:len(targetLabels):len(targetLabels)], "code")),
		deprecated:   f.NewGaugeVec(prometheus.GaugeOpts{Name: "apiserver_requested_deprecated_apis", Help: "Gauge of deprecated APIs that have been requested, broken out by API group, version, resource, subresource, and removed_release."}, []string{"group", "version", "resource", "subresource", "removed_release"}),
		aborts:       f.NewCounterVec(prometheus.CounterOpts{Name: "apiserver_request_aborts_total", Help: "Number of requests which apiserver aborted possibly due to a timeout, for each group, version, verb, resource, subresource and scope"}, targetLabels[:6]),

		authenticationAttempts:  f.NewCounterVec(prometheus.CounterOpts{Name: "authentication_attempts", Help: "Counter of authenticated attempts."}, []string{"result"}),
		authenticationDurations: f.NewHistogramVec(prometheus.HistogramOpts{Name: "authentication_duration_seconds", Buckets: prometheus.ExponentialBuckets(0.001, 2, 15), Help: "Authentication duration in seconds broken out by result."}, []string{"result"}),
		authenticatedUsers:      f.NewCounterVec(prometheus.CounterOpts{Name: "authenticated_user_requests", Help: "Counter of authenticated requests broken out by username."}, []string{"username"}),
		authorizationAttempts:   f.NewCounterVec(prometheus.CounterOpts{Name: "authorization_attempts_total", Help: "Counter of authorization attempts broken down by result. It can be either 'allowed', 'denied', 'no-opinion' or 'error'."}, []string{"result"}),
		authorizationDurations:  f.NewHistogramVec(prometheus.HistogramOpts{Name: "authorization_duration_seconds", Buckets: prometheus.ExponentialBuckets(0.001, 2, 15), Help: "Authorization duration in seconds broken out by result."}, []string{"result"}),

		readOnlyInFlight: &highWater{}, mutatingInFlight: &highWater{},
	}
	m.lookUp()
	registerer.MustRegister(metrics.OnReset(m.lookUp))
	for kind, mark := range map[string]*highWater{"readOnly": m.readOnlyInFlight, "mutating": m.mutatingInFlight} {
		f.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "apiserver_current_inflight_requests", ConstLabels: prometheus.Labels{"request_kind": kind},
			Help: "Maximal number of requests of this kind served at once since the metric was last read.",
		}, mark.read)
	}
	return m
}

// lookUp finds the series anew that are known from the start, and forgets the others.
func (m *Metrics) lookUp() {
	m.authenticationOutcomes.find(m.authenticationAttempts, m.authenticationDurations, "success", "failure", "error")
	m.authorizationOutcomes.find(m.authorizationAttempts, m.authorizationDurations, "allowed", "denied", "no-opinion", "error")
	m.mu.Lock()
	defer m.mu.Unlock()
	m.known.Store(&map[seriesKey]*series{})
}

// outcome is where attempts that ended in one way are counted and timed.
type outcome struct {
	count    prometheus.Counter
	duration prometheus.Observer
}

// outcomes are looked up once.
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

// highWater is the greatest number seen since it was last read.
type highWater struct{ mark atomic.Int64 }

func (h *highWater) see(n int64) {
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

// kindOfUser keeps names out of the metrics.
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

// terminated counts a request that was ended in self-defence.
func (m *Metrics) terminated(record *request.Record, r *http.Request, code int) {
	k := keyOf(record, r)
	if !record.Info.IsResourceRequest {
		k.subresource = record.Info.Path
	}
	m.terminations.WithLabelValues(append(k.target(), strconv.Itoa(code))...).Inc()
}

// dropped counts a request refused because there were too many.
func (m *Metrics) dropped(record *request.Record, r *http.Request) {
	k := keyOf(record, r)
	m.requests.WithLabelValues(append(k.withDryRun(), "429")...).Inc()
	m.terminated(record, r, http.StatusTooManyRequests)
}

// aborted counts a request whose response was broken off.
func (m *Metrics) aborted(record *request.Record, r *http.Request) {
	k := keyOf(record, r)
	m.aborts.WithLabelValues(k.target()[:6]...).Inc()
}

// seriesKey tells requests apart as the metrics do.
type seriesKey struct {
	verb, dryRun, group, version, resource, subresource, scope, component string
}

func (k *seriesKey) target() []string {
	return []string{k.verb, k.group, k.version, k.resource, k.subresource, k.scope, k.component}
}

func (k *seriesKey) withDryRun() []string {
	return []string{k.verb, k.dryRun, k.group, k.version, k.resource, k.subresource, k.scope, k.component}
}

// keyOf classifies a request.
func keyOf(record *request.Record, r *http.Request) seriesKey {
	info := &record.Info
	if !info.IsResourceRequest {
		return seriesKey{verb: verbOf(record, r, ""), subresource: info.Path}
	}
	scope := "cluster"
	switch {
	case len(info.Parts) >= 2 || r.Method == http.MethodPost:
		scope = "resource"
	case info.Namespace != "":
		scope = "namespace"
	}
	return seriesKey{
		verb: verbOf(record, r, scope), dryRun: dryRunOf(record), group: info.APIGroup, version: info.APIVersion,
		resource: info.Resource, subresource: info.Subresource, scope: scope, component: "apiserver",
	}
}

// verbOf returns the verb as kube-apiserver reports it.
func verbOf(record *request.Record, r *http.Request, scope string) string {
	switch record.Info.Subresource {
	case "log", "exec", "portforward", "attach", "proxy":
		return "CONNECT"
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		if record.Info.Verb == "watch" || (record.HasParameter("watch") && request.WantsWatch(record.Query())) {
			return "WATCH"
		}
		if scope == "namespace" || scope == "cluster" {
			return "LIST"
		}
		return "GET"
	case http.MethodPatch:
		if r.Header.Get("Content-Type") == string(types.ApplyPatchType) {
			return "APPLY"
		}
		return "PATCH"
	case http.MethodPost, http.MethodPut, http.MethodDelete:
		return r.Method
	}
	return "other"
}

func dryRunOf(record *request.Record) string {
	if !record.HasParameter("dryRun") {
		return ""
	}
	for _, value := range record.Query()["dryRun"] {
		if value != "All" {
			return "invalid"
		}
	}
	return "All"
}

// series are the metrics of one kind of request, looked up once.
type series struct {
	metrics     *Metrics
	key         seriesKey
	duration    prometheus.Observer
	sli         prometheus.Observer // nil for dry runs
	size        prometheus.Observer // nil for what is not a read
	longRunning prometheus.Gauge
	ok          prometheus.Counter // of code 200
}

// series returns the series of a kind of request, nil if there has been none.
func (m *Metrics) series(key seriesKey) *series { return (*m.known.Load())[key] }

// addSeries makes the series of a kind of request.
func (m *Metrics) addSeries(key seriesKey) *series {
	m.mu.Lock()
	defer m.mu.Unlock()
	known := *m.known.Load()
	if s := known[key]; s != nil {
		return s
	}
	s := &series{
		metrics: m, key: key,
		duration:    m.durations.WithLabelValues(key.withDryRun()...),
		longRunning: m.longRunning.WithLabelValues(key.target()...),
		ok:          m.requests.WithLabelValues(append(key.withDryRun(), "200")...),
	}
	if key.dryRun == "" {
		s.sli = m.sli.WithLabelValues(key.target()...)
	}
	if key.verb == "GET" || key.verb == "LIST" {
		s.size = m.sizes.WithLabelValues(key.target()...)
	}
	more := maps.Clone(known)
	more[key] = s
	m.known.Store(&more)
	return s
}

// observe records a finished request.
func (s *series) observe(status int, size int64, took time.Duration) {
	if status == http.StatusOK {
		s.ok.Inc()
	} else {
		s.metrics.requests.WithLabelValues(append(s.key.withDryRun(), strconv.Itoa(status))...).Inc()
	}
	seconds := took.Seconds()
	s.duration.Observe(seconds)
	if s.sli != nil {
		s.sli.Observe(seconds)
	}
	if s.size != nil {
		s.size.Observe(float64(size))
	}
}
