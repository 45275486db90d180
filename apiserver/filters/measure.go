package filters

import (
	"net/http"

	"k8s.io/utils/clock"

	"quorate.dev/apiserver/request"
	"quorate.dev/apiserver/resource"
)

// measure counts and times the requests that reach a handler. It is the innermost filter: what others refuse they
// count themselves.
type measure struct {
	next    http.Handler
	metrics *Metrics
	catalog *resource.Publisher
	clock   clock.PassiveClock
}

func (f *measure) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	record := request.From(r.Context())
	key := keyOf(record, r)
	measured := f.metrics.series(key)
	if measured == nil && f.isServed(record) {
		measured = f.metrics.addSeries(key)
	}
	if measured == nil {
		f.next.ServeHTTP(w, r)
		return
	}
	if record.LongRunning {
		measured.longRunning.Inc()
		defer measured.longRunning.Dec()
	}
	f.next.ServeHTTP(w, r)
	answer, ok := w.(*response)
	if !ok {
		return
	}
	status, size := answer.sent()
	measured.observe(status, size, f.clock.Since(record.Received))
}

// isServed tells whether a request is for something that exists. Others would let clients make any number of series. It
// is asked once for every series, and so notes that a deprecated version is in use.
func (f *measure) isServed(record *request.Record) bool {
	info := &record.Info
	if !info.IsResourceRequest {
		switch info.Path {
		case "/healthz", "/livez", "/readyz":
			return true
		}
		return false
	}
	catalog := f.catalog.Current()
	if catalog == nil {
		return false
	}
	match, ok := catalog.Lookup(info.APIGroup, info.APIVersion, info.Resource)
	if !ok {
		return false
	}
	if match.Version.Endpoints[info.Subresource] == nil {
		return false
	}
	if match.Version.Deprecation != "" {
		f.metrics.deprecated.WithLabelValues(info.APIGroup, info.APIVersion, info.Resource, info.Subresource, match.Version.RemovedIn).Set(1)
	}
	return true
}
