package filters

import (
	"net/http"
	"sync/atomic"

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

// reservedShare is the part of a limit that essential requests have besides it.
const reservedShare = 4

// limit bounds how many requests of one kind are served at once.
type limit struct {
	shared   slots
	reserved slots // for essential requests
	gauge    *highWater
}

func (l *limit) init(most int, gauge *highWater) {
	l.shared.most, l.gauge = int64(most), gauge
	l.reserved.most = (l.shared.most + reservedShare - 1) / reservedShare
}

// take returns where the request has got a slot, nil if there is none.
func (l *limit) take(record *request.Record) *slots {
	if essential(record) && l.reserved.take() {
		return &l.reserved
	}
	if l.shared.take() {
		return &l.shared
	}
	return nil
}

// slots are counted while they are taken.
type slots struct {
	most  int64 // 0: any number
	taken atomic.Int64
}

func (s *slots) take() bool {
	if n := s.taken.Add(1); s.most == 0 || n <= s.most {
		return true
	}
	s.taken.Add(-1)
	return false
}

func newMaxInFlight(next http.Handler, options Options) http.Handler {
	f := &maxInFlight{next: next, metrics: options.Metrics}
	f.reading.init(options.MaxRequestsInFlight, options.Metrics.readOnlyInFlight)
	f.mutating.init(options.MaxMutatingRequestsInFlight, options.Metrics.mutatingInFlight)
	return f
}

func (f *maxInFlight) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	record := request.From(r.Context())
	if record.LongRunning {
		f.next.ServeHTTP(w, r)
		return
	}
	limit := &f.mutating
	if readOnly(record) {
		limit = &f.reading
	}
	slot := limit.take(record)
	switch {
	case slot != nil:
		defer slot.taken.Add(-1)
		limit.gauge.see(limit.shared.taken.Load() + limit.reserved.taken.Load())
	case !privileged(record):
		f.metrics.dropped(record, r)
		refuseTooMany(w)
		return
	}
	f.next.ServeHTTP(w, r)
}

// refuseTooMany asks a client to try again later.
func refuseTooMany(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "1")
	http.Error(w, "Too many requests, please try again later.", http.StatusTooManyRequests)
}
