package request

import (
	"context"
	"sync/atomic"
	"time"

	upstream "k8s.io/apiserver/pkg/endpoints/request"
)

// latencies returns the trackers that upstream's callers of webhooks add to. Most requests need none.
func (r *Record) latencies() *upstream.LatencyTrackers {
	if trackers := r.latency.Load(); trackers != nil {
		return trackers
	}
	trackers, _ := upstream.LatencyTrackersFrom(upstream.WithLatencyTrackers(context.Background()))
	if r.latency.CompareAndSwap(nil, trackers) {
		return trackers
	}
	return r.latency.Load()
}

// Latency is how long parts of the request took.
type Latency struct {
	Authentication, Impersonation, Authorization time.Duration
	ResponseWrite                                time.Duration // measured for audited requests only

	storage atomic.Int64 // in nanoseconds; the sum of all requests to etcd
}

// TrackStorage adds the duration of a request to etcd. It does nothing for a nil Record.
func (r *Record) TrackStorage(took time.Duration) {
	if r != nil {
		r.Latency.storage.Add(int64(took))
	}
}

// LatencyAnnotations returns the audit annotations of a slow request.
func (r *Record) LatencyAnnotations() map[string]string {
	upstream.TrackAuthenticationLatency(r, r.Latency.Authentication)
	upstream.TrackAPFQueueWaitLatency(r, r.Flow.Waited)
	upstream.TrackImpersonationLatency(r, r.Latency.Impersonation)
	upstream.TrackAuthorizationLatency(r, r.Latency.Authorization)
	upstream.TrackStorageLatency(r, time.Duration(r.Latency.storage.Load()))
	upstream.TrackResponseWriteLatency(r, r.Latency.ResponseWrite)
	return upstream.AuditAnnotationsFromLatencyTrackers(r)
}

// ExternalLatency is how long the request has waited in a queue and for admission webhooks: those that mutate one after
// another, of those that validate, which run at the same time, the slowest. The service level indicator does not count it.
func (r *Record) ExternalLatency() time.Duration {
	trackers := r.latency.Load()
	if trackers == nil {
		return r.Flow.Waited
	}
	return trackers.MutatingWebhookTracker.GetLatency() + trackers.ValidatingWebhookTracker.GetLatency() +
		r.Flow.Waited
}

// Flow is the result of priority and fairness. It is empty for requests that are not classified.
type Flow struct {
	Schema, Level            string // names
	InitialSeats, FinalSeats uint64
	AdditionalLatency        time.Duration
	Waited                   time.Duration // in a queue
	Executed                 time.Duration // with seats
}
