package filters

import (
	"net/http"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/endpoints/request"
)

// TestWebhooksAreNotInTheIndicator: the duration of webhooks, as upstream's plugins track it, is subtracted from the
// service level indicator only.
func TestWebhooksAreNotInTheIndicator(t *testing.T) {
	const webhook = time.Hour
	f := start(t, false, nil, func(_ http.ResponseWriter, r *http.Request) {
		trackers, ok := request.LatencyTrackersFrom(r.Context())
		if !ok {
			t.Error("the request has no trackers")
			return
		}
		trackers.MutatingWebhookTracker.TrackDuration(webhook)
		trackers.ValidatingWebhookTracker.TrackDuration(2 * webhook)
		trackers.ValidatingWebhookTracker.TrackDuration(webhook) // at the same time
	})
	f.get(t, "POST", "/api/v1/namespaces/a/pods", "alice")
	f.final(t, "apiserver_request_total")
	families, err := f.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sums := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			sums[family.GetName()] += metric.GetHistogram().GetSampleSum()
		}
	}
	whole, indicator := sums["apiserver_request_duration_seconds"], sums["apiserver_request_sli_duration_seconds"]
	if want := whole - 3*webhook.Seconds(); whole <= 0 || whole > webhook.Seconds() ||
		indicator < want-1 || indicator > want+1 {
		t.Errorf("the indicator is %v, want %v of %v", indicator, want, whole)
	}
}
