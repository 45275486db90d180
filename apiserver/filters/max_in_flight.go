package filters

import (
	"net/http"
	"slices"
	"sync/atomic"

	"k8s.io/apiserver/pkg/authentication/user"

	"quorate.dev/apiserver/request"
)

// maxInFlight answers 429 when too many requests are being served. Long-running ones are not counted, and
// administrators always get through.
type maxInFlight struct {
	next     http.Handler
	reading  limit
	mutating limit
	metrics  *Metrics
}

// limit bounds how many requests of one kind are served at once.
type limit struct {
	most    int64 // 0: any number
	current atomic.Int64
	gauge   *highWater
}

func newMaxInFlight(next http.Handler, options Options) http.Handler {
	f := &maxInFlight{next: next, metrics: options.Metrics}
	f.reading.most, f.reading.gauge = int64(options.MaxRequestsInFlight), options.Metrics.readOnlyInFlight
	f.mutating.most, f.mutating.gauge = int64(options.MaxMutatingRequestsInFlight), options.Metrics.mutatingInFlight
	return f
}

func (f *maxInFlight) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	record := request.From(r.Context())
	if record.LongRunning {
		f.next.ServeHTTP(w, r)
		return
	}
	bound := &f.mutating
	switch record.Info.Verb {
	case "get", "list", "watch":
		bound = &f.reading
	}
	n := bound.current.Add(1)
	defer bound.current.Add(-1)
	if bound.most > 0 && n > bound.most && !slices.Contains(record.User.GetGroups(), user.SystemPrivilegedGroup) {
		f.metrics.dropped(record, r)
		w.Header().Set("Retry-After", "1")
		http.Error(w, "Too many requests, please try again later.", http.StatusTooManyRequests)
		return
	}
	bound.gauge.see(n)
	f.next.ServeHTTP(w, r)
}
