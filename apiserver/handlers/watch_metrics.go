package handlers

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"quorate.dev/apiserver/metrics"
	"quorate.dev/apiserver/resource"
)

// The upper bound of the first classic bucket of the sizes of watch events is 1 KiB, and each further bound is twice
// the previous bound. The bounds of the native buckets are 2^(i/8), as in a prometheus.Histogram with the options of
// metrics.Histogram. Therefore each bound of a classic bucket is also the bound of a native bucket, and the counts of
// the classic buckets are sums of the counts of native buckets.
const (
	firstExponent   = 10
	eventBounds     = 8
	nativeSchema    = 3
	nativePerDouble = 1 << nativeSchema
	// nativeBounds is the number of native buckets. The last bucket also counts the sizes above 4 GiB.
	nativeBounds = 32*nativePerDouble + 1
)

// eventCounts count the events of all watches of one version of a resource by size. Each event costs a watch two atomic
// additions.
type eventCounts struct {
	buckets [nativeBounds]atomic.Uint64
	bytes   atomic.Uint64
}

func (e *eventCounts) add(size int) {
	bucket := int(math.Ceil(math.Log2(float64(max(size, 1))) * nativePerDouble))
	e.buckets[min(bucket, nativeBounds-1)].Add(1)
	e.bytes.Add(uint64(size))
}

// read returns the number of events, in total, cumulated by classic bound, and by native bucket.
func (e *eventCounts) read() (total uint64, classic map[float64]uint64, native map[int]int64) {
	classic, native = make(map[float64]uint64, eventBounds), map[int]int64{}
	for i := range e.buckets {
		count := e.buckets[i].Load()
		total += count
		if count > 0 {
			native[i] = int64(count)
		}
		if exponent := i / nativePerDouble; i%nativePerDouble == 0 && exponent >= firstExponent &&
			exponent < firstExponent+eventBounds {
			classic[float64(uint64(1)<<exponent)] = total
		}
	}
	return total, classic, native
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

// Forget drops the counts of a resource. The metrics registry calls it when the resource is no longer served.
func (c *eventCollector) Forget(of schema.GroupResource) {
	for key := range c.counts.Range {
		if labels := key.(eventLabels); labels.group == of.Group && labels.resource == of.Resource {
			c.counts.Delete(key)
		}
	}
}

var (
	eventsDescription = prometheus.NewDesc("apiserver_watch_events_total",
		"[BETA] Number of events sent in watch clients", []string{"group", "version", "resource"}, nil)
	eventSizesDescription = prometheus.NewDesc("apiserver_watch_events_sizes",
		"[BETA] Watch event size distribution in bytes", []string{"group", "version", "resource"}, nil)
)

// Describe implements prometheus.Collector.
func (*eventCollector) Describe(out chan<- *prometheus.Desc) {
	out <- eventsDescription
	out <- eventSizesDescription
}

// Collect implements prometheus.Collector.
func (c *eventCollector) Collect(out chan<- prometheus.Metric) {
	hasNative := metrics.NativeHistograms()
	c.counts.Range(func(key, value any) bool {
		labels, counts := key.(eventLabels), value.(*eventCounts)
		total, classic, native := counts.read()
		if total == 0 {
			return true
		}
		values := []string{labels.group, labels.version, labels.resource}
		out <- prometheus.MustNewConstMetric(eventsDescription, prometheus.CounterValue, float64(total), values...)
		bytes := float64(counts.bytes.Load())
		sizes := prometheus.MustNewConstHistogram(eventSizesDescription, total, bytes, classic, values...)
		if hasNative {
			sizes = metrics.WithNative(sizes, prometheus.MustNewConstNativeHistogram(eventSizesDescription, total, bytes,
				native, nil, 0, nativeSchema, prometheus.DefNativeHistogramZeroThreshold, time.Time{}, values...))
		}
		out <- sizes
		return true
	})
}
