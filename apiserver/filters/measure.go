package filters

import (
	"net/http"

	"k8s.io/utils/clock"

	"quorate.dev/apiserver/request"
)

// measure counts and times the requests that reach a handler. It is the innermost filter: the others count what they
// refuse. A request for something that is not served is not measured.
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
	answer, ok := w.(*response)
	if !ok {
		return
	}
	status, size := answer.sent()
	measured.observe(status, size, f.clock.Since(record.Received), record.ExternalLatency())
}

// seriesOf returns the series of a request, nil if what it is for is not served. The first request of a series for a
// deprecated version marks that version as requested.
func (f *measure) seriesOf(record *request.Record, r *http.Request) *series {
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
