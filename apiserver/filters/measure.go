package filters

import (
	"net/http"

	auditapi "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/request"
)

// measure counts requests that reach a handler and measures their duration. Requests that an extension API server
// serves, and requests for resources and paths that are not served, are not measured.
type measure struct {
	next    http.Handler
	metrics *Metrics
	clock   clock.PassiveClock
}

func (f *measure) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	record := request.From(r.Context())
	measured := f.seriesOf(record, r)
	if measured == nil {
		f.next.ServeHTTP(w, r)
		return
	}
	if record.LongRunning {
		measured.longRunning.Inc()
		defer measured.longRunning.Dec()
	}
	f.next.ServeHTTP(w, r)
	if record.Audits(auditapi.LevelMetadata) {
		f.metrics.auditDeprecation(record)
	}
	answer, ok := w.(*response)
	if !ok {
		return
	}
	status, size := answer.sent()
	measured.observe(record, status, size, f.clock.Since(record.Received))
}

// seriesOf returns the series of a request, or nil if its target is not served. When it creates a series, it also marks
// a deprecated version as requested.
func (f *measure) seriesOf(record *request.Record, r *http.Request) *series {
	if record.Delegate != nil {
		return nil
	}
	key := requestKey(record, r)
	if known := f.metrics.series(key); known != nil {
		return known
	}
	if !f.metrics.serves(record) {
		return nil
	}
	f.metrics.noteDeprecated(record)
	return f.metrics.addSeries(key)
}
