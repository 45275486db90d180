package flowcontrol

import "time"

// series returns the metrics of the flow, nil if the flow has none. The first request looks them up.
func (f *Flow) series() *series {
	known, m := f.found.Load(), f.metrics
	if known != nil || m == nil {
		return known
	}
	found := &series{
		dispatched: m.dispatched.WithLabelValues(f.Level, f.Schema),
		executing:  m.executing.WithLabelValues(f.Level, f.Schema),
		seats:      m.seats.WithLabelValues(f.Level, f.Schema),
		regular:    m.execution.WithLabelValues(f.Level, f.Schema, "regular"),
		estimated:  m.estimated.WithLabelValues(f.Level, f.Schema),
	}
	if f.limited {
		found.waited = m.waiting.WithLabelValues(f.Level, f.Schema, "true")
	}
	if f.queues > 0 {
		found.queueLength = m.queueLength.WithLabelValues(f.Level, f.Schema)
		m.inQueue.WithLabelValues(f.Level, f.Schema)
		m.seatsInQueue.WithLabelValues(f.Level, f.Schema)
	}
	f.found.Store(found)
	return found
}

func (f *Flow) countEstimated(r *Request) {
	if s := f.series(); s != nil {
		s.estimated.Observe(float64(r.maxSeats()))
	}
}

func (f *Flow) countRejected(reason string) {
	f.metrics.rejected.WithLabelValues(f.Level, f.Schema, reason).Inc()
	if f.limited {
		f.metrics.waiting.WithLabelValues(f.Level, f.Schema, "false").Observe(0)
	}
}

// countEnqueued counts a request that entered a queue, even if it left the queue immediately.
func (f *Flow) countEnqueued(r *Request) {
	if s := f.series(); s != nil && r.queue != nil && s.queueLength != nil {
		s.queueLength.Observe(float64(r.place))
	}
	if r.granted != nil {
		f.addWaiting(1, r.queued)
	}
}

// addWaiting adds numbers of waiting requests and of their seats to the gauges.
func (f *Flow) addWaiting(requests, seats int) {
	if m := f.metrics; m != nil {
		m.inQueue.WithLabelValues(f.Level, f.Schema).Add(float64(requests))
		m.seatsInQueue.WithLabelValues(f.Level, f.Schema).Add(float64(seats))
	}
}

// countDispatched counts a request that starts to execute.
func (f *Flow) countDispatched(waited time.Duration) {
	s := f.series()
	if s == nil {
		return
	}
	s.dispatched.Inc()
	if s.waited != nil {
		s.waited.Observe(waited.Seconds())
	}
}

// countTimedOut counts a request that left its queue because its wait timed out.
func (f *Flow) countTimedOut(waited time.Duration) {
	if m := f.metrics; m != nil {
		m.rejected.WithLabelValues(f.Level, f.Schema, "time-out").Inc()
		m.waiting.WithLabelValues(f.Level, f.Schema, "false").Observe(waited.Seconds())
	}
}

func (f *Flow) countFinished(r *Request, took time.Duration) {
	s := f.series()
	switch {
	case s == nil:
	case r.info != nil && r.info.Verb == "watch":
		f.metrics.execution.WithLabelValues(f.Level, f.Schema, "watch").Observe(took.Seconds())
	default:
		s.regular.Observe(took.Seconds())
	}
}

// addExecuting adds numbers of executing requests and of their seats to the gauges.
func (f *Flow) addExecuting(requests, seats int) {
	s := f.series()
	if s == nil {
		return
	}
	if requests != 0 {
		s.executing.Add(float64(requests))
	}
	if seats != 0 {
		s.seats.Add(float64(seats))
	}
}

func (f *Flow) countNoAccommodation() {
	if m := f.metrics; m != nil {
		m.noAccommodation.WithLabelValues(f.Level, f.Schema).Inc()
	}
}
