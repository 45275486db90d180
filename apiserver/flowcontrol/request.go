package flowcontrol

import (
	"context"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	upstream "k8s.io/apiserver/pkg/endpoints/request"
	fcrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
)

// Request is a request that waits or executes. Wait must be called once and, if it returns true, then Finish once.
type Request struct {
	flow          *Flow
	distinguisher string
	info          *upstream.RequestInfo
	user          user.Info
	// onIdle is called when the last request of a deleted priority level has finished. It may be nil.
	onIdle func(*queueSet)

	set *queueSet
	// queue is nil if the priority level has no queues.
	queue *queue
	// place is the length of the queue, including the request, when the request was added.
	place int
	// queued is the number of seats that the request waits for. The request may get fewer: see dispatchFrom.
	queued int
	// estimated is the estimate before dispatchFrom changed it.
	estimated fcrequest.WorkEstimate

	// The fields below, except granted, are guarded by set.mu after the request has been started. previous and next
	// are its neighbours in a list.
	previous, next *Request
	estimate       fcrequest.WorkEstimate
	// work is the estimated work of the execution and, as finalWork alone, of the additional latency.
	work, finalWork fcrequest.SeatSeconds
	arrival         time.Time
	// arrivalR is the virtual time at which the request arrived.
	arrivalR fcrequest.SeatSeconds
	// started is the time at which the execution started.
	started    time.Time
	dispatched bool
	// counted is set while set.waitingGauge includes the request.
	counted bool

	// granted is closed when the request leaves its queue for execution. It is nil if the request does not wait.
	granted chan struct{}
}

// maxSeats returns the number of seats that the request holds while it executes and during its additional latency.
func (r *Request) maxSeats() int {
	return max(int(r.estimate.InitialSeats), int(r.estimate.FinalSeats))
}

// estimateWork sets the fields that follow from the estimate.
func (r *Request) estimateWork() {
	r.finalWork = fcrequest.SeatsTimesDuration(float64(r.estimate.FinalSeats), r.estimate.AdditionalLatency)
	r.queued, r.estimated = r.maxSeats(), r.estimate
	r.work = r.finalWork + fcrequest.SeatsTimesDuration(float64(r.estimate.InitialSeats), estimatedService)
}

// Estimate returns the estimated work of the request.
func (r *Request) Estimate() fcrequest.WorkEstimate { return r.estimated }

// Waits reports whether the request had to wait in a queue when Start returned.
func (r *Request) Waits() bool { return r.granted != nil }

// Wait waits until the request may execute. It returns false if ctx ends or limit passes before: the request is
// rejected then. A zero limit is no limit.
func (r *Request) Wait(ctx context.Context, limit time.Time) bool {
	if r.granted == nil {
		r.flow.countDispatched(0)
		return true
	}
	if !limit.IsZero() {
		limited, cancel := context.WithDeadline(ctx, limit)
		defer cancel()
		ctx = limited
	}
	select {
	case <-r.granted:
	case <-ctx.Done():
		if r.set.cancel(r) {
			r.flow.addWaiting(-1, -r.queued)
			r.flow.countTimedOut(r.set.clock.Since(r.arrival))
			r.idle()
			return false
		}
	}
	r.flow.addWaiting(-1, -r.queued)
	r.flow.countDispatched(r.Waited())
	return true
}

// Waited returns the time for which the request was in a queue. It must not be called before Wait has returned true.
func (r *Request) Waited() time.Duration { return r.started.Sub(r.arrival) }

// Finish must be called when the request has been executed or, for a watch, when it has sent its initial state. It
// does not wait.
func (r *Request) Finish() {
	r.flow.countFinished(r, r.set.finish(r))
	r.idle()
}

// idle calls onIdle if the priority level has been deleted and has no more requests.
func (r *Request) idle() {
	if r.onIdle != nil && r.set.undesired.Load() && r.set.IsIdle() {
		r.onIdle(r.set)
	}
}
