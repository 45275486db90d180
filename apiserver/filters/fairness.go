package filters

import (
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apiserver/pkg/util/flowcontrol"
	flowmetrics "k8s.io/apiserver/pkg/util/flowcontrol/metrics"
	flowrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"

	"quorate.dev/apiserver/request"
)

// Fairness decides which requests run, wait in a queue or are rejected, by flow schemas and priority levels.
type Fairness struct {
	Flows flowcontrol.Interface
	// Estimate returns the seats of a request that is not exempt.
	Estimate flowrequest.WorkEstimatorFunc
}

// maxQueueWait is the longest time in a queue. A request with a deadline waits for a quarter of it at most.
const maxQueueWait = time.Minute

// fairness takes the place of maxInFlight with --enable-priority-and-fairness. Like that, it ignores requests for extension
// API servers and long-running requests; of a watch, only the initialization counts.
type fairness struct {
	Fairness
	next        http.Handler
	dropped     flowcontrol.DroppedRequestsTracker
	defaultWait time.Duration // of requests without a deadline
	metrics     *Metrics
	reading     flowGauges
	mutating    flowGauges
}

func newFairness(next http.Handler, options Options) http.Handler {
	return &fairness{
		Fairness: *options.Fairness, next: next, metrics: options.Metrics,
		dropped:     flowcontrol.NewDroppedRequestsTracker(),
		defaultWait: min(options.RequestTimeout/4, maxQueueWait),
		reading: flowGauges{
			mark: options.Metrics.readOnlyInFlight, queueMark: options.Metrics.readOnlyQueued,
			executing: flowmetrics.GetExecutingReadonlyConcurrency(), waiting: flowmetrics.GetWaitingReadonlyConcurrency(),
		},
		mutating: flowGauges{
			mark: options.Metrics.mutatingInFlight, queueMark: options.Metrics.mutatingQueued,
			executing: flowmetrics.GetExecutingMutatingConcurrency(), waiting: flowmetrics.GetWaitingMutatingConcurrency(),
		},
	}
}

// flowGauges count the requests of one kind that run and wait.
type flowGauges struct {
	running, queued    atomic.Int64
	mark, queueMark    *highWater
	executing, waiting flowmetrics.RatioedGauge
}

func (g *flowGauges) enter() {
	g.mark.observe(g.running.Add(1))
	g.executing.Inc()
}

func (g *flowGauges) leave() {
	g.running.Add(-1)
	g.executing.Dec()
}

// noteQueued is called when a request begins and when it ends to wait.
func (g *flowGauges) noteQueued(waits bool) {
	if waits {
		g.queueMark.observe(g.queued.Add(1))
		g.waiting.Inc()
		return
	}
	g.queued.Add(-1)
	g.waiting.Dec()
}

func (f *fairness) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	record := request.From(r.Context())
	watches := record.Info.Verb == "watch"
	if record.LongRunning && !watches || record.Delegate != nil {
		f.next.ServeHTTP(w, r)
		return
	}
	flow := &flow{fairness: f, w: w, r: r, record: record, gauges: &f.mutating}
	if readOnly(record) {
		flow.gauges = &f.reading
	}
	if watches {
		flow.watch()
	} else {
		flow.handle(func() { f.next.ServeHTTP(w, r) })
	}
	if !flow.served {
		flow.reject()
	}
}

// flow is one request that is classified.
type flow struct {
	*fairness
	w      http.ResponseWriter
	r      *http.Request
	record *request.Record
	gauges *flowGauges
	schema *flowcontrolv1.FlowSchema
	level  *flowcontrolv1.PriorityLevelConfiguration
	served bool
}

// handle calls execute when the request may run. It returns when execute has, or when the request is rejected.
func (f *flow) handle(execute func()) {
	ctx, cancel := f.record.QueueContext(f.waitUntil())
	defer cancel()
	digest := flowcontrol.RequestDigest{RequestInfo: &f.record.Info, User: f.record.User}
	f.Flows.Handle(ctx, digest, f.note, f.estimate, f.gauges.noteQueued, func() {
		f.gauges.enter()
		defer f.gauges.leave()
		f.served = true
		f.identify()
		execute()
	})
}

// waitUntil returns when the request is rejected if it still waits: after a quarter of the time until its deadline.
func (f *flow) waitUntil() time.Time {
	wait := f.defaultWait
	if deadline, ok := f.record.Deadline(); ok {
		wait = min(deadline.Sub(f.record.Received)/4, maxQueueWait)
	}
	return f.record.Received.Add(wait)
}

func (f *flow) note(schema *flowcontrolv1.FlowSchema, level *flowcontrolv1.PriorityLevelConfiguration, _ string) {
	f.schema, f.level = schema, level
	f.record.Flow.Schema, f.record.Flow.Level = schema.Name, level.Name
}

func (f *flow) estimate() flowrequest.WorkEstimate {
	estimate := flowrequest.WorkEstimate{InitialSeats: 1}
	if f.record.Info.Verb != "get" {
		estimate = f.Estimate(f.r, f.schema.Name, f.level.Name)
	}
	flowmetrics.ObserveWorkEstimatedSeats(f.level.Name, f.schema.Name, estimate.MaxSeats())
	f.record.Flow.InitialSeats, f.record.Flow.FinalSeats = estimate.InitialSeats, estimate.FinalSeats
	f.record.Flow.AdditionalLatency = estimate.AdditionalLatency
	return estimate
}

// identify sends the UIDs of the schema and the level: their names may be confidential.
func (f *flow) identify() {
	header := f.w.Header()
	header[levelHeader] = []string{string(f.level.UID)}
	header[schemaHeader] = []string{string(f.schema.UID)}
}

var (
	levelHeader  = http.CanonicalHeaderKey(flowcontrolv1.ResponseHeaderMatchedPriorityLevelConfigurationUID)
	schemaHeader = http.CanonicalHeaderKey(flowcontrolv1.ResponseHeaderMatchedFlowSchemaUID)
)

func (f *flow) reject() {
	f.identify()
	f.metrics.dropped(f.record, f.r)
	f.dropped.RecordDroppedRequest(f.level.Name)
	refuseTooMany(f.w, strconv.FormatInt(f.dropped.GetRetryAfter(f.level.Name), 10))
}

// watch serves a watch whose seats are free again when the handler calls record.Initialized or returns: until then
// another goroutine holds them.
func (f *flow) watch() {
	started, finished := make(chan struct{}), make(chan any, 1)
	initialized := make(chan struct{})
	f.record.Initialized = sync.OnceFunc(func() { close(initialized) })
	forget := func() {}
	go func() {
		defer func() { finished <- recover() }()
		f.handle(func() {
			if forgets := f.Flows.RegisterWatch(f.r); forgets != nil {
				forget = forgets
			}
			close(started)
			<-initialized
		})
	}()
	select {
	case <-started:
		defer func() {
			f.record.Initialized()
			panicked := <-finished
			forget()
			if panicked != nil {
				panic(panicked)
			}
		}()
		f.next.ServeHTTP(f.w, f.r)
	case panicked := <-finished:
		if panicked != nil {
			panic(panicked)
		}
	}
}
