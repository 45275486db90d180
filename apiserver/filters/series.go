package filters

import (
	"maps"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"quorate.dev/apiserver/request"
	"quorate.dev/apiserver/resource"
)

// component is the label "component" of requests that this server serves itself.
const component = "apiserver"

// aggregatorComponent is the label "component" of requests that are rejected in place of an extension API server.
const aggregatorComponent = "aggregator"

// seriesKey has the labels of a request.
//
// Invariant: in a key that becomes labels or is stored, group, version, resource and subresource are empty or belong to
// a resource that the catalog serves, subresource is the path of a health check, or group and version have an
// APIService. All other fields have values from fixed sets. Rejected requests must not create series, as they do in
// kube-apiserver's apiserver_request_terminations_total, because clients could create any number of series.
type seriesKey struct {
	verb, dryRun, group, version, resource, subresource, scope, component string
}

func (k *seriesKey) target() []string {
	return []string{k.verb, k.group, k.version, k.resource, k.subresource, k.scope, k.component}
}

func (k *seriesKey) withDryRun() []string {
	return []string{k.verb, k.dryRun, k.group, k.version, k.resource, k.subresource, k.scope, k.component}
}

// clone copies the strings that share memory with the request. A stored key would otherwise keep the whole URL in
// memory.
func (k *seriesKey) clone() seriesKey {
	cloned := *k
	cloned.group, cloned.version = strings.Clone(k.group), strings.Clone(k.version)
	cloned.resource, cloned.subresource = strings.Clone(k.resource), strings.Clone(k.subresource)
	return cloned
}

// requestKey returns the key with the names that the client sent, which must not become labels; see servedKey.
func requestKey(record *request.Record, r *http.Request) seriesKey {
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
		resource: info.Resource, subresource: info.Subresource, scope: scope, component: component,
	}
}

// servedKey returns a key that may become labels: the complete key if the target of the request is served, otherwise
// only its verb.
func (m *Metrics) servedKey(record *request.Record, r *http.Request) seriesKey {
	key := requestKey(record, r)
	// The group and version of the request have an APIService; the client chooses all other names.
	if record.Delegate != nil {
		key.resource, key.subresource, key.component = "", "", component
		return key.clone()
	}
	if m.series(key) == nil && !m.serves(record) {
		return seriesKey{verb: key.verb, component: component}
	}
	if key.component == "" {
		key.component = component
	}
	return key.clone()
}

// serves reports whether the target of a request is served.
func (m *Metrics) serves(record *request.Record) bool {
	info := &record.Info
	if !info.IsResourceRequest {
		switch info.Path {
		case "/healthz", "/livez", "/readyz":
			return true
		}
		return false
	}
	match, ok := m.match(record)
	return ok && match.Version.Endpoints[info.Subresource] != nil
}

// match returns the resource of a request if the catalog serves it.
func (m *Metrics) match(record *request.Record) (resource.Match, bool) {
	catalog := m.catalog.Current()
	if catalog == nil {
		return resource.Match{}, false
	}
	return catalog.Lookup(record.Info.APIGroup, record.Info.APIVersion, record.Info.Resource)
}

// noteDeprecated marks the version of a request's resource as requested, if it is deprecated.
func (m *Metrics) noteDeprecated(record *request.Record) {
	match, ok := m.match(record)
	if !ok || match.Version.Deprecation == "" {
		return
	}
	subresource := strings.Clone(record.Info.Subresource)
	m.deprecated.WithLabelValues(
		match.Group, match.Version.Name, match.Plural, subresource, match.Version.RemovedIn,
	).Set(1)
}

// auditDeprecation annotates the audit event of a request for a deprecated version.
func (m *Metrics) auditDeprecation(record *request.Record) {
	if match, ok := m.match(record); ok && match.Version.Deprecation != "" {
		annotateDeprecation(record, match.Version.RemovedIn)
	}
}

// verbOf returns the verb of a request in kube-apiserver's metrics.
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
	// r.Method shares memory with the request; constants do not.
	case http.MethodPost:
		return http.MethodPost
	case http.MethodPut:
		return http.MethodPut
	case http.MethodDelete:
		return http.MethodDelete
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

// series has the metrics of all requests with the same labels, looked up once.
type series struct {
	metrics  *Metrics
	key      seriesKey
	duration prometheus.Observer
	// sli is nil for dry runs.
	sli prometheus.Observer
	// size is nil except for GET and LIST.
	size prometheus.Observer
	// body observes the sizes of request bodies; nil for verbs without a body.
	body prometheus.Observer
	// validates is set if bodies are validated as the parameter fieldValidation requires.
	validates   bool
	longRunning prometheus.Gauge
	// ok counts responses with status code 200.
	ok prometheus.Counter
}

// series returns the series of a key, or nil if the series does not exist yet.
func (m *Metrics) series(key seriesKey) *series { return (*m.known.Load())[key] }

// addSeries creates the series of a key, whose target must be served.
func (m *Metrics) addSeries(key seriesKey) *series {
	m.mu.Lock()
	defer m.mu.Unlock()
	known := *m.known.Load()
	if s := known[key]; s != nil {
		return s
	}
	key = key.clone()
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
	if verb := key.bodyVerb(); verb != "" {
		s.body = m.requestBodies.WithLabelValues(key.group, key.resource, verb)
		s.validates = key.verb != http.MethodDelete
	}
	more := maps.Clone(known)
	more[key] = s
	m.known.Store(&more)
	return s
}

// observe records a request that has ended, with the status code and the size of the response.
func (s *series) observe(record *request.Record, status int, size int64, took time.Duration) {
	if status == http.StatusOK {
		s.ok.Inc()
	} else {
		s.metrics.requests.WithLabelValues(append(s.key.withDryRun(), strconv.Itoa(status))...).Inc()
	}
	seconds := took.Seconds()
	s.duration.Observe(seconds)
	if s.sli != nil {
		s.sli.Observe((took - record.ExternalLatency()).Seconds())
	}
	if s.body != nil {
		if size, read := record.BodySize(); read {
			s.body.Observe(float64(size))
		}
	}
	if s.validates {
		s.metrics.validated(record, took)
	}
	s.metrics.selfRequested(record, &s.key)
	if s.size != nil {
		s.size.Observe(float64(size))
	}
}

// terminated counts a request that the server ended to protect itself.
func (m *Metrics) terminated(record *request.Record, r *http.Request, code int) {
	key := m.servedKey(record, r)
	m.terminations.WithLabelValues(append(key.target(), strconv.Itoa(code))...).Inc()
}

// Undelegated counts a request that its Delegate did not forward. kube-apiserver's metric also has the resource as a
// label.
func (m *Metrics) Undelegated(r *http.Request, code int) {
	key := m.servedKey(request.From(r.Context()), r)
	key.component = aggregatorComponent
	m.terminations.WithLabelValues(append(key.target(), strconv.Itoa(code))...).Inc()
}

// dropped counts a request that was rejected with 429 because there were too many.
func (m *Metrics) dropped(record *request.Record, r *http.Request) {
	key := m.servedKey(record, r)
	m.requests.WithLabelValues(append(key.withDryRun(), "429")...).Inc()
	m.terminated(record, r, http.StatusTooManyRequests)
}

// aborted counts a request whose response was aborted.
func (m *Metrics) aborted(record *request.Record, r *http.Request) {
	key := m.servedKey(record, r)
	m.aborts.WithLabelValues(key.target()[:len(targetLabels)-1]...).Inc()
}
