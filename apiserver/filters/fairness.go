package filters

import (
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/flowcontrol"
	"quorate.dev/apiserver/request"
)

// classify assigns each request to a flow schema and its priority level, and sets the headers that name both. It precedes
// authorization, as priority and fairness does in kube-apiserver, so that the response to a forbidden request has the
// headers too. Long-running requests other than watches are not subject to priority and fairness.
type classify struct {
	next       http.Handler
	controller *flowcontrol.Controller
}

func (f *classify) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	record := request.From(r.Context())
	if record.LongRunning && record.Info.Verb != "watch" {
		f.next.ServeHTTP(w, r)
		return
	}
	flow := f.controller.Match(record)
	record.Flow.Matched, record.Flow.Schema, record.Flow.Level = flow, flow.Schema, flow.Level
	header := w.Header()
	header[levelHeader], header[schemaHeader] = flow.LevelHeader, flow.SchemaHeader
	f.next.ServeHTTP(w, r)
}

// The headers have the UIDs, not the names, which may reveal the administrator's opinion of a client.
var (
	levelHeader  = http.CanonicalHeaderKey(flowcontrolv1.ResponseHeaderMatchedPriorityLevelConfigurationUID)
	schemaHeader = http.CanonicalHeaderKey(flowcontrolv1.ResponseHeaderMatchedFlowSchemaUID)
)

// fairness executes requests within the seats of their priority levels. A request for which no seat is free waits in a
// queue or is rejected with 429. Requests for extension API servers have limits of their own and take no seats, so that a
// slow one of these delays no other request.
type fairness struct {
	next              http.Handler
	controller        *flowcontrol.Controller
	metrics           *Metrics
	clock             clock.PassiveClock
	waitLimit         time.Duration // of requests without a deadline
	reading, mutating phases
}

// phases counts requests of one kind that execute and that wait.
type phases struct{ executing, waiting phase }

// phase counts requests in one phase of priority and fairness.
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
		next: next, controller: options.Fairness, metrics: m, clock: options.Clock, waitLimit: options.RequestTimeout / waitShare,
	}
	f.reading.executing.mark, f.mutating.executing.mark = m.readOnlyInFlight, m.mutatingInFlight
	f.reading.waiting.mark, f.mutating.waiting.mark = m.readOnlyQueued, m.mutatingQueued
	gauges := flowcontrol.ConcurrencyGauges()
	f.reading.executing.gauge, f.reading.waiting.gauge = gauges.ReadOnlyExecuting, gauges.ReadOnlyWaiting
	f.mutating.executing.gauge, f.mutating.waiting.gauge = gauges.MutatingExecuting, gauges.MutatingWaiting
	return f
}

const (
	// waitShare: a request may wait for one waitShare-th of the time that it has.
	waitShare = 4
	// maxWait bounds the wait of all requests.
	maxWait = time.Minute
)

func (f *fairness) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	record := request.From(r.Context())
	flow, ok := record.Flow.Matched.(*flowcontrol.Flow)
	if !ok || record.Delegate != nil {
		f.next.ServeHTTP(w, r)
		return
	}
	kind := &f.mutating
	if readOnly(record) {
		kind = &f.reading
	}
	started := f.start(r, record, flow, kind)
	if started == nil {
		f.metrics.dropped(record, r)
		refuseTooMany(w, strconv.FormatInt(f.controller.RetryAfter(flow), 10))
		return
	}
	execution := &execution{request: started, executing: &kind.executing, clock: f.clock, began: f.clock.Now(), flow: &record.Flow}
	kind.executing.add(1)
	defer execution.end()
	if record.Info.Verb == "watch" {
		defer f.controller.RegisterWatch(r)()
		record.Initialized = execution.end
	}
	f.next.ServeHTTP(w, r)
}

// start returns the request when it may execute, nil if it is rejected.
func (f *fairness) start(r *http.Request, record *request.Record, flow *flowcontrol.Flow, kind *phases) *flowcontrol.Request {
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
	record.Flow.Waited = started.Waited()
	return started
}

// limit returns the time until which a request may wait.
func (f *fairness) limit(record *request.Record) time.Time {
	wait := f.waitLimit
	if deadline, ok := record.Deadline(); ok {
		wait = deadline.Sub(record.Received) / waitShare
	}
	return record.Received.Add(min(wait, maxWait))
}

// execution releases the seats of a request once: when its handler returns or, of a watch, when it has sent its initial
// state.
type execution struct {
	request   *flowcontrol.Request
	executing *phase
	clock     clock.PassiveClock
	began     time.Time
	flow      *request.Flow
}

func (e *execution) end() {
	if e.request == nil {
		return
	}
	e.executing.add(-1)
	e.flow.Executed = e.clock.Since(e.began)
	e.request.Finish()
	e.request = nil
}
