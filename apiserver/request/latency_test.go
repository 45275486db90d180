package request

import (
	"sync"
	"testing"
	"time"

	upstream "k8s.io/apiserver/pkg/endpoints/request"
)

// Webhooks that validate run at the same time and add to the trackers of one request.
func TestExternalLatency(t *testing.T) {
	record := &Record{Context: t.Context()}
	if got := record.ExternalLatency(); got != 0 {
		t.Errorf("without webhooks: %v", got)
	}
	var work sync.WaitGroup
	for _, took := range []time.Duration{time.Second, 3 * time.Second, 2 * time.Second} {
		work.Go(func() {
			trackers, ok := upstream.LatencyTrackersFrom(record)
			if !ok {
				t.Error("the record has no trackers")
				return
			}
			trackers.ValidatingWebhookTracker.TrackDuration(took)
			trackers.MutatingWebhookTracker.TrackDuration(took)
		})
	}
	work.Wait()
	// The latency is the sum of all mutating webhooks, and the latency of the slowest validating webhook.
	if got, want := record.ExternalLatency(), 9*time.Second; got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}
