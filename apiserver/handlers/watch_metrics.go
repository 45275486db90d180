package handlers

import (
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"quorate.dev/apiserver/resource"
)

// The buckets of the sizes of watch events start at 1 KiB; each bound is twice the previous one.
const (
	firstEventBound = 1 << 10
	eventBounds     = 8
)

// eventCounts count the events of all watches of one version of a resource by size. Each event costs a watch two atomic
// additions.
type eventCounts struct {
	buckets [eventBounds + 1]atomic.Uint64
	bytes   atomic.Uint64
}

func (e *eventCounts) add(size int) {
	bucket := bits.Len(uint(max(size-1, 0)) / firstEventBound)
	e.buckets[min(bucket, eventBounds)].Add(1)
	e.bytes.Add(uint64(size))
}

// eventLabels are the labels of one eventCounts.
type eventLabels struct{ group, version, resource string }

// eventCollector exports the numbers and sizes of watch events. The zero value is ready to use.
// counts maps eventLabels to *eventCounts.
type eventCollector struct{ counts sync.Map }

// of returns the counts for the watches of a resource in one version.
func (c *eventCollector) of(match resource.Match) *eventCounts {
	labels := eventLabels{match.Group, match.Version.Name, match.Plural}
	counts, ok := c.counts.Load(labels)
	if !ok {
		counts, _ = c.counts.LoadOrStore(labels, &eventCounts{})
	}
	return counts.(*eventCounts)
}

// Reset drops all counts. The metrics registry calls it when its metrics are reset.
func (c *eventCollector) Reset() { c.counts.Clear() }

var (
	eventsDescription = prometheus.NewDesc("apiserver_watch_events_total",
		"[ALPHA] Number of events sent in watch clients", []string{"group", "version", "resource"}, nil)
	eventSizesDescription = prometheus.NewDesc("apiserver_watch_events_sizes",
		"[ALPHA] Watch event size distribution in bytes", []string{"group", "version", "resource"}, nil)
)

// Describe implements prometheus.Collector.
func (*eventCollector) Describe(out chan<- *prometheus.Desc) {
	out <- eventsDescription
	out <- eventSizesDescription
}

// Collect implements prometheus.Collector.
func (c *eventCollector) Collect(out chan<- prometheus.Metric) {
	c.counts.Range(func(key, value any) bool {
		labels, counts := key.(eventLabels), value.(*eventCounts)
		buckets := make(map[float64]uint64, eventBounds)
		total := uint64(0)
		for i := range eventBounds {
			total += counts.buckets[i].Load()
			buckets[float64(int(firstEventBound)<<i)] = total
		}
		total += counts.buckets[eventBounds].Load()
		if total == 0 {
			return true
		}
		values := []string{labels.group, labels.version, labels.resource}
		out <- prometheus.MustNewConstMetric(eventsDescription, prometheus.CounterValue, float64(total), values...)
		out <- prometheus.MustNewConstHistogram(eventSizesDescription, total, float64(counts.bytes.Load()),
			buckets, values...)
		return true
	})
}
