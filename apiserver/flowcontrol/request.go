package flowcontrol

import (
	"context"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	upstream "k8s.io/apiserver/pkg/endpoints/request"
	fcrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
)

// Request is a request that waits or executes. Wait and then, if it returned true, Finish must be called once each.
type Request struct {
	flow          *Flow
	distinguisher string
	info          *upstream.RequestInfo
	user          user.Info
	onIdle        func(*queueSet) // called when the last request of an undesired level has finished; may be nil

	set   *queueSet
	queue *queue // nil: the level has no queues
	place int    // in the queue, when the request arrived
	// queued is the number of seats that the request waits for. It can be more than it gets: see dispatchFrom.
	queued int
	// estimated is the estimate before dispatchFrom changes it.
	estimated fcrequest.WorkEstimate

	// Guarded by set.mu once the request is started.
	previous, next  *Request
	estimate        fcrequest.WorkEstimate
	work, finalWork fcrequest.SeatSeconds // work includes finalWork
	arrival         time.Time
	arrivalR        fcrequest.SeatSeconds
	started         time.Time // of the execution
	dispatched      bool
	counted         bool // in set.waitingGauge

	// granted is closed when the request leaves its queue for execution. It is nil if the request did not have to wait.
	granted chan struct{}
}

// maxSeats returns the number of seats that the request occupies while it executes, and for its additional latency.
func (r *Request) maxSeats() int {
	return max(int(r.estimate.InitialSeats), int(r.estimate.FinalSeats))
}

func (r *Request) estimateWork() {
	r.finalWork = fcrequest.SeatsTimesDuration(float64(r.estimate.FinalSeats), r.estimate.AdditionalLatency)
	r.queued, r.estimated = r.maxSeats(), r.estimate
	r.work = r.finalWork + fcrequest.SeatsTimesDuration(float64(r.estimate.InitialSeats), estimatedService)
}

// Estimate returns the estimated work of the request.
func (r *Request) Estimate() fcrequest.WorkEstimate { return r.estimated }

// Waits reports whether the request is in a queue when Start returns.
func (r *Request) Waits() bool { return r.granted != nil }

// Wait waits until the request may execute. It returns false, and the request is rejected, when ctx ends or limit, unless
// zero, has passed before.
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

// Waited returns how long the request was in a queue. It may be called after Wait has returned true.
func (r *Request) Waited() time.Duration { return r.started.Sub(r.arrival) }

// Finish must be called when the request has been executed. A watch finishes when it has sent its initial state.
func (r *Request) Finish() {
	r.flow.countFinished(r, r.set.finish(r))
	r.idle()
}

func (r *Request) idle() {
	if r.onIdle != nil && r.set.undesired.Load() && r.set.IsIdle() {
		r.onIdle(r.set)
	}
}
