package filters

import (
	"net/http"
	"sync"
	"sync/atomic"

	"quorate.dev/apiserver/request"
)

// maxInFlight responds with 429 when too many requests are in flight. Long-running requests are not counted;
// administrators are exempt. It precedes authorization for the same reason as fairness.
type maxInFlight struct {
	next     http.Handler
	reading  limit
	mutating limit
	metrics  *Metrics
}

// reservedShare is the number of shared slots for each of which groups a limit has one slot that is reserved for
// essential requests.
const reservedShare = 4

// limit bounds the number of requests in flight, either of reads or of other requests.
type limit struct {
	shared slots
	// reserved are the slots for essential requests.
	reserved slots
	gauge    *highWater
}

func (l *limit) init(max int, gauge *highWater) {
	l.shared.max, l.gauge = int64(max), gauge
	l.reserved.max = (l.shared.max + reservedShare - 1) / reservedShare
}

// take takes a slot for the request and returns the slots that it belongs to, or nil if none is free.
func (l *limit) take(record *request.Record) *slots {
	if essential(record) && l.reserved.take() {
		return &l.reserved
	}
	if l.shared.take() {
		return &l.shared
	}
	return nil
}

// slots counts the requests in flight.
type slots struct {
	// max is the maximum of taken; 0 means no limit.
	max   int64
	taken atomic.Int64
}

func (s *slots) take() bool {
	if n := s.taken.Add(1); s.max == 0 || n <= s.max {
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
	taken := &slot{limit: &f.mutating, record: record}
	if readOnly(record) {
		taken.limit = &f.reading
	}
	if !taken.Retake() {
		f.metrics.dropped(record, r)
		refuseTooMany(w, "1")
		return
	}
	defer taken.Release()
	record.Seat = taken
	f.next.ServeHTTP(w, r)
}

// slot is the slot of one request. A privileged request proceeds without a slot if none is free.
type slot struct {
	limit  *limit
	record *request.Record

	mu sync.Mutex
	// taken is nil while the request has no slot.
	taken *slots
}

// Retake implements request.Seat.
func (s *slot) Retake() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken != nil {
		return true
	}
	if s.taken = s.limit.take(s.record); s.taken == nil {
		return privileged(s.record)
	}
	s.limit.gauge.observe(s.limit.shared.taken.Load() + s.limit.reserved.taken.Load())
	return true
}

// Release implements request.Seat.
func (s *slot) Release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken != nil {
		s.taken.taken.Add(-1)
		s.taken = nil
	}
}

// refuseTooMany responds with 429, kube-apiserver's text and a Retry-After header; after is in seconds.
func refuseTooMany(w http.ResponseWriter, after string) {
	w.Header().Set("Retry-After", after)
	http.Error(w, "Too many requests, please try again later.", http.StatusTooManyRequests)
}
