package watchcache

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// stats are the values of one cache's metrics.
type stats struct {
	objects         atomic.Int64
	stored          atomic.Int64 // bytes of the objects
	capacity        atomic.Int64
	received        atomic.Int64
	dispatched      atomic.Int64
	initializations atomic.Int64
	terminated      atomic.Int64
	waits           atomic.Int64
	waitedFor       atomic.Int64 // nanoseconds
	// consistent, inconsistent and inconclusive count the consistency checks.
	consistent, inconsistent, inconclusive atomic.Int64
}

func (s *stats) waited(duration time.Duration) {
	s.waits.Add(1)
	s.waitedFor.Add(int64(duration))
}

// collector exports stats. Metrics that kube-apiserver has too have its names.
type collector struct {
	all []*Caches

	objects, objectsByGroup, capacity, watchers, revision                   *prometheus.Desc
	storageEvents, received, dispatched, initializations, terminated, waits *prometheus.Desc
	checks                                                                  *prometheus.Desc
	encodings, encodedBytes, evictions                                      *prometheus.Desc
}

// Register registers the metrics of all Caches of a server.
func Register(registerer prometheus.Registerer, all ...*Caches) {
	registerer.MustRegister(newCollector(all))
}

func newCollector(all []*Caches) *collector {
	perResource := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc(name, help, []string{"group", "resource"}, nil)
	}
	overall := func(name, help string) *prometheus.Desc { return prometheus.NewDesc(name, help, nil, nil) }
	return &collector{
		all: all,
		objects: prometheus.NewDesc("apiserver_storage_objects",
			"[DEPRECATED, consider using apiserver_resource_objects instead] Number of stored objects, as cached.",
			[]string{"resource"}, nil),
		objectsByGroup: perResource("apiserver_resource_objects", "Number of stored objects, as cached."),
		storageEvents: perResource("apiserver_storage_events_received_total",
			"Number of etcd events received split by kind."),
		capacity: perResource("apiserver_watch_cache_capacity", "Number of events that fit into the watch cache."),
		received: perResource("apiserver_watch_cache_events_received_total", "Number of events received from storage."),
		dispatched: perResource("apiserver_watch_cache_events_dispatched_total",
			"Number of events dispatched to watchers."),
		initializations: perResource("apiserver_watch_cache_initializations_total",
			"Number of times the collection was read from storage."),
		terminated: perResource("apiserver_terminated_watchers_total",
			"Number of watchers terminated because they lagged behind."),
		checks: prometheus.NewDesc("apiserver_storage_consistency_checks_total",
			"Counter for status of consistency checks between etcd and watch cache", []string{"group", "resource", "status"}, nil),
		waits: perResource("apiserver_watch_cache_read_wait_seconds",
			"Time in seconds that readers waited for a revision."),
		watchers: perResource("apiserver_watch_cache_watchers", "Number of watchers."),
		revision: perResource("apiserver_watch_cache_resource_version",
			"Current resource version of watch cache broken by resource type. This is truncated to the 15 least significant digits."),
		encodings: overall("apiserver_watch_cache_encodings", "Number of encodings in the watch cache."),
		encodedBytes: overall("apiserver_watch_cache_encoded_bytes",
			"Memory of the encodings in the watch cache, in bytes."),
		evictions: overall("apiserver_watch_cache_encoding_evictions_total",
			"Number of encodings evicted to stay within the budget."),
	}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(out chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, out) }

// Collect implements prometheus.Collector.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	var bytes, evicted int64
	var count int
	for _, caches := range c.all {
		for _, cache := range *caches.byPath.Load() {
			c.collectCache(cache, out)
		}
		b, n := caches.encoded.usage()
		bytes, count, evicted = bytes+b, count+n, evicted+caches.encoded.evicted.Load()
	}
	out <- prometheus.MustNewConstMetric(c.encodings, prometheus.GaugeValue, float64(count))
	out <- prometheus.MustNewConstMetric(c.encodedBytes, prometheus.GaugeValue, float64(bytes))
	out <- prometheus.MustNewConstMetric(c.evictions, prometheus.CounterValue, float64(evicted))
}

func (c *collector) collectCache(cache *Cache, out chan<- prometheus.Metric) {
	group, resource := cache.extract.Resource.Group, cache.extract.Resource.Resource
	if resource == "" {
		resource = cache.path
	}
	gauge := func(desc *prometheus.Desc, value int64) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(value), group, resource)
	}
	counter := func(desc *prometheus.Desc, value int64) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(value), group, resource)
	}
	s := &cache.stats
	cache.mu.RLock()
	watchers := cache.watchers.count()
	cache.mu.RUnlock()
	gauge(c.objectsByGroup, s.objects.Load())
	name := schema.GroupResource{Group: group, Resource: resource}.String()
	out <- prometheus.MustNewConstMetric(c.objects, prometheus.GaugeValue, float64(s.objects.Load()), name)
	counter(c.storageEvents, s.received.Load())
	gauge(c.capacity, s.capacity.Load())
	gauge(c.revision, cache.caches.Revision()%1e15)
	gauge(c.watchers, int64(watchers))
	counter(c.received, s.received.Load())
	counter(c.dispatched, s.dispatched.Load())
	counter(c.initializations, s.initializations.Load())
	counter(c.terminated, s.terminated.Load())
	for status, count := range map[string]int64{
		"success": s.consistent.Load(), "failure": s.inconsistent.Load(), "error": s.inconclusive.Load(),
	} {
		if count > 0 {
			out <- prometheus.MustNewConstMetric(c.checks, prometheus.CounterValue, float64(count), group, resource, status)
		}
	}
	waited := time.Duration(s.waitedFor.Load()).Seconds()
	out <- prometheus.MustNewConstSummary(c.waits, uint64(s.waits.Load()), waited, nil, group, resource)
}
