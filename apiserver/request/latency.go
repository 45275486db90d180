package request

import (
	"context"
	"sync/atomic"
	"time"

	upstream "k8s.io/apiserver/pkg/endpoints/request"
)

// latencies returns the trackers in which upstream's code records latencies, for example of webhooks. They are created
// on first use, because most requests record none.
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

// Latency has the durations of the parts of a request.
type Latency struct {
	Authentication, Impersonation, Authorization time.Duration
	// ResponseWrite is measured only for audited requests.
	ResponseWrite time.Duration

	// storage is the sum of the durations of all requests to etcd, in nanoseconds.
	storage atomic.Int64
}

// TrackStorage adds the duration of a request to etcd. It does nothing for a nil Record.
func (r *Record) TrackStorage(took time.Duration) {
	if r != nil {
		r.Latency.storage.Add(int64(took))
	}
}

// LatencyAnnotations returns the annotations for the audit event of a slow request.
func (r *Record) LatencyAnnotations() map[string]string {
	upstream.TrackAuthenticationLatency(r, r.Latency.Authentication)
	upstream.TrackAPFQueueWaitLatency(r, r.Flow.Waited)
	upstream.TrackImpersonationLatency(r, r.Latency.Impersonation)
	upstream.TrackAuthorizationLatency(r, r.Latency.Authorization)
	upstream.TrackStorageLatency(r, time.Duration(r.Latency.storage.Load()))
	upstream.TrackResponseWriteLatency(r, r.Latency.ResponseWrite)
	return upstream.AuditAnnotationsFromLatencyTrackers(r)
}

// ExternalLatency returns how long the request has waited in a queue and for admission webhooks: the sum of the
// mutating webhooks, which run one after another, and the slowest of the validating webhooks, which run concurrently.
// The service level indicator excludes it.
func (r *Record) ExternalLatency() time.Duration {
	trackers := r.latency.Load()
	if trackers == nil {
		return r.Flow.Waited
	}
	return trackers.MutatingWebhookTracker.GetLatency() + trackers.ValidatingWebhookTracker.GetLatency() +
		r.Flow.Waited
}

// Flow is the result of priority and fairness for a request. It is empty for requests that are not classified.
type Flow struct {
	// Schema and Level are the names of the flow schema and the priority level.
	Schema, Level            string
	InitialSeats, FinalSeats uint64
	AdditionalLatency        time.Duration
	// Waited is the time spent in queues.
	Waited time.Duration
	// Executed is the time for which the request has held seats.
	Executed time.Duration
}
