package filters

import (
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/flowcontrol"
	"quorate.dev/apiserver/request"
)

// The headers contain UIDs, not names, because a name may reveal how the administrator classifies a client.
var (
	levelHeader  = http.CanonicalHeaderKey(flowcontrolv1.ResponseHeaderMatchedPriorityLevelConfigurationUID)
	schemaHeader = http.CanonicalHeaderKey(flowcontrolv1.ResponseHeaderMatchedFlowSchemaUID)
)

// fairness implements priority and fairness. It assigns each request to a flow schema and its priority level, and
// executes it within the seats of the priority level. A request for which no seat is free waits in a queue or is
// rejected with 429. Long-running requests other than watches are not subject to priority and fairness.
//
// fairness precedes authorization, as in kube-apiserver, because an authorizer may call a webhook: otherwise clients
// without permissions could cause any number of concurrent calls.
type fairness struct {
	next       http.Handler
	controller *flowcontrol.Controller
	metrics    *Metrics
	clock      clock.PassiveClock
	// waitLimit bounds the wait of requests without a deadline.
	waitLimit         time.Duration
	reading, mutating phases
}

// phases counts the executing and the waiting requests, either of reads or of other requests.
type phases struct{ executing, waiting phase }

// phase counts requests in one phase of priority and fairness and exports their number.
type phase struct {
	count atomic.Int64
	mark  *highWater
	gauge func(float64)
}

func (p *phase) add(delta int64) {
	count := p.count.Add(delta)
	if delta > 0 {
		p.mark.observe(count)
	}
	p.gauge(float64(count))
}

func newFairness(next http.Handler, options Options) http.Handler {
	m := options.Metrics
	f := &fairness{
		next: next, controller: options.Fairness, metrics: m, clock: options.Clock,
		waitLimit: options.RequestTimeout / waitShare,
	}
	f.reading.executing.mark, f.mutating.executing.mark = m.readOnlyInFlight, m.mutatingInFlight
	f.reading.waiting.mark, f.mutating.waiting.mark = m.readOnlyQueued, m.mutatingQueued
	gauges := flowcontrol.ConcurrencyGauges()
	f.reading.executing.gauge, f.reading.waiting.gauge = gauges.ReadOnlyExecuting, gauges.ReadOnlyWaiting
	f.mutating.executing.gauge, f.mutating.waiting.gauge = gauges.MutatingExecuting, gauges.MutatingWaiting
	return f
}

const (
	// waitShare is the reciprocal of the share of its time that a request may wait.
	waitShare = 4
	// maxWait bounds the wait of every request.
	maxWait = time.Minute
)

func (f *fairness) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	record := request.From(r.Context())
	if record.LongRunning && record.Info.Verb != "watch" {
		f.next.ServeHTTP(w, r)
		return
	}
	flow := f.controller.Match(record)
	record.Flow.Schema, record.Flow.Level = flow.Schema, flow.Level
	header := w.Header()
	header[levelHeader], header[schemaHeader] = flow.LevelHeader, flow.SchemaHeader
	taken := &levelSeat{filter: f, r: r, record: record, flow: flow, kind: &f.mutating}
	if readOnly(record) {
		taken.kind = &f.reading
	}
	if !taken.Retake() {
		f.metrics.dropped(record, r)
		refuseTooMany(w, strconv.FormatInt(f.controller.RetryAfter(flow), 10))
		return
	}
	defer taken.Release()
	if record.Info.Verb == "watch" {
		defer f.controller.RegisterWatch(r)()
	}
	record.Seat = taken
	f.next.ServeHTTP(w, r)
}

// start waits until a request may execute, and returns nil if it is rejected.
func (f *fairness) start(
	r *http.Request, record *request.Record, flow *flowcontrol.Flow, kind *phases,
) *flowcontrol.Request {
	started := f.controller.Start(r, record, flow)
	if started == nil {
		return nil
	}
	estimate := started.Estimate()
	record.Flow.InitialSeats, record.Flow.FinalSeats = estimate.InitialSeats, estimate.FinalSeats
	record.Flow.AdditionalLatency = estimate.AdditionalLatency
	if started.Waits() {
		kind.waiting.add(1)
		defer kind.waiting.add(-1)
	}
	if !started.Wait(record, f.limit(record)) {
		return nil
	}
	record.Flow.Waited += started.Waited()
	return started
}

// limit returns the time until which a request may wait in a queue.
func (f *fairness) limit(record *request.Record) time.Time {
	wait := f.waitLimit
	if deadline, ok := record.Deadline(); ok {
		wait = deadline.Sub(record.Received) / waitShare
	}
	return record.Received.Add(min(wait, maxWait))
}

// levelSeat is the seats of a request at its priority level. They are released when the handler returns or, earlier,
// when the rest of the request's work needs no seats, such as a watch that has sent its initial state.
type levelSeat struct {
	filter *fairness
	r      *http.Request
	record *request.Record
	flow   *flowcontrol.Flow
	kind   *phases

	mu sync.Mutex
	// request is nil while the request has no seats.
	request *flowcontrol.Request
	began   time.Time
}

// Retake implements request.Seat.
func (s *levelSeat) Retake() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.request != nil {
		return true
	}
	if s.request = s.filter.start(s.r, s.record, s.flow, s.kind); s.request == nil {
		return false
	}
	s.began = s.filter.clock.Now()
	s.kind.executing.add(1)
	return true
}

// Release implements request.Seat.
func (s *levelSeat) Release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.request == nil {
		return
	}
	s.kind.executing.add(-1)
	s.record.Flow.Executed += s.filter.clock.Since(s.began)
	s.request.Finish()
	s.request = nil
}
