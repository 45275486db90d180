package watchcache

import (
	"slices"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
)

// stats has the values of one cache's metrics.
type stats struct {
	objects         atomic.Int64
	stored          atomic.Int64 // size of the stored objects, in bytes
	capacity        atomic.Int64
	received        atomic.Int64
	dispatched      atomic.Int64
	initializations atomic.Int64
	terminated      atomic.Int64
	failures        atomic.Int64 // initializations that failed
	waits           histogram    // times for which readers waited for a revision
	loads           histogram    // durations of initializations

	// consistentReads counts the calls of Latest that succeeded, laggingReads those that failed because the cache
	// lagged, and failedReads those that failed for another reason.
	consistentReads, laggingReads, failedReads atomic.Int64
	initial                                    atomic.Int64 // objects that watches have sent as initial events
	fromCache, fromStorage                     listStats
	shards                                     shardStats
	// consistent, inconsistent and inconclusive count the consistency checks by result.
	consistent, inconsistent, inconclusive atomic.Int64
}

// listStats counts lists, and the objects that lists have fetched, evaluated and returned.
type listStats struct {
	lists, fetched, evaluated, returned atomic.Int64
}

func (s *listStats) add(fetched, evaluated, returned int) {
	s.lists.Add(1)
	s.fetched.Add(int64(fetched))
	s.evaluated.Add(int64(evaluated))
	s.returned.Add(int64(returned))
}

// CountList counts a list that the cache has served.
func (c *Cache) CountList(fetched, returned int) { c.stats.fromCache.add(fetched, 0, returned) }

// CountStoredList counts a list that the store has served.
func (c *Cache) CountStoredList(fetched, evaluated, returned int) {
	c.stats.fromStorage.add(fetched, evaluated, returned)
}

// collector exports stats, under kube-apiserver's names if it has the metric.
type collector struct {
	all []*Caches

	objects, objectsByGroup, size, capacity, watchers, revision             *prometheus.Desc
	failures, loads                                                         *prometheus.Desc
	storageEvents, received, dispatched, initializations, terminated, waits *prometheus.Desc
	checks, initial, consistent                                             *prometheus.Desc
	cacheLists, cacheFetched, cacheReturned                                 *prometheus.Desc
	storageLists, storageFetched, storageEvaluated, storageReturned         *prometheus.Desc
	encodings, encodedBytes, evictions                                      *prometheus.Desc
	shards                                                                  *shardDescriptions
}

var resourceLabels = []string{"group", "resource"}

// Register registers the metrics of all Caches of a server.
func Register(registerer prometheus.Registerer, all ...*Caches) {
	registerer.MustRegister(newCollector(all))
}

func newCollector(all []*Caches) *collector {
	perResource := func(name, help string, further ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, "[ALPHA] "+help, slices.Concat(resourceLabels, further), nil)
	}
	overall := func(name, help string) *prometheus.Desc { return prometheus.NewDesc(name, "[ALPHA] "+help, nil, nil) }
	const cache, lists, storage = "apiserver_watch_cache_", "apiserver_cache_list_", "apiserver_storage_list_"
	const deprecated = "(Deprecated since 1.37.0) "
	const count = "Number of stored objects at the time of last check split by kind. " +
		"In case of a fetching error, the value will be -1."
	return &collector{
		all: all,
		objects: prometheus.NewDesc("apiserver_storage_objects", "[STABLE] (Deprecated since 1.34.0) "+
			"[DEPRECATED, consider using apiserver_resource_objects instead] "+count, []string{"resource"}, nil),
		objectsByGroup: perResource("apiserver_resource_objects", count),
		size: perResource("apiserver_resource_size_estimate_bytes", "Estimated size of stored objects in database. "+
			"Estimate is based on sum of last observed sizes of serialized objects. "+
			"In case of a fetching error, the value will be -1."),
		storageEvents: prometheus.NewDesc("apiserver_storage_events_received_total",
			"[BETA] Number of etcd events received split by kind.", resourceLabels, nil),
		capacity: perResource("watch_cache_capacity", "Total capacity of watch cache broken by resource type."),
		received: perResource(cache+"events_received_total",
			"Counter of events received in watch cache broken by resource type."),
		dispatched: perResource(cache+"events_dispatched_total",
			"Counter of events dispatched in watch cache broken by resource type."),
		initializations: perResource(cache+"initializations_total",
			"Counter of watch cache initializations broken by resource type."),
		failures: perResource(cache+"initialization_errors_total",
			"Counter of watch cache initialization errors broken by resource type."),
		loads: perResource(cache+"initialization_duration_seconds",
			"Histogram of watch cache initialization duration in seconds, broken by resource type."),
		terminated: perResource("apiserver_terminated_watchers_total",
			"Counter of watchers closed due to unresponsiveness broken by resource type."),
		checks: perResource("apiserver_storage_consistency_checks_total",
			"Counter for status of consistency checks between etcd and watch cache", "status"),
		waits: perResource(cache+"read_wait_seconds",
			"Histogram of time spent waiting for a watch cache to become fresh."),
		initial: perResource("apiserver_init_events_total",
			"Counter of init events processed in watch cache broken by resource type."),
		consistent: perResource(cache+"consistent_read_total", "Counter for consistent reads from cache.",
			"success", "fallback"),
		cacheLists: perResource(lists+"total", deprecated+"Number of LIST requests served from watch cache", "index"),
		cacheFetched: perResource(lists+"fetched_objects_total",
			deprecated+"Number of objects read from watch cache in the course of serving a LIST request", "index"),
		cacheReturned: perResource(lists+"returned_objects_total",
			deprecated+"Number of objects returned for a LIST request from watch cache"),
		storageLists: perResource(storage+"total", "Number of LIST requests served from storage", "storage", "index"),
		storageFetched: perResource(storage+"fetched_objects_total",
			"Number of objects read from storage in the course of serving a LIST request", "storage", "index"),
		storageEvaluated: perResource(storage+"evaluated_objects_total",
			"Number of objects tested in the course of serving a LIST request from storage", "storage"),
		storageReturned: perResource(storage+"returned_objects_total",
			"Number of objects returned for a LIST request from storage", "storage"),
		watchers: perResource(cache+"watchers", "Number of watchers."),
		revision: perResource(cache+"resource_version", "Current resource version of watch cache broken by resource type. "+
			"This is truncated to the 15 least significant digits."),
		encodings:    overall(cache+"encodings", "Number of encodings in the watch cache."),
		encodedBytes: overall(cache+"encoded_bytes", "Memory of the encodings in the watch cache, in bytes."),
		evictions: overall(cache+"encoding_evictions_total",
			"Number of encodings evicted to stay within the budget."),
		shards: describeShards(perResource),
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
	labels := []string{group, resource}
	gauge := func(desc *prometheus.Desc, value int64) {
		out <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(value), labels...)
	}
	counter := func(desc *prometheus.Desc, value int64, further ...string) {
		values := slices.Concat(labels, further)
		out <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(value), values...)
	}
	s := &cache.stats
	cache.mu.RLock()
	watchers := cache.watchers.count()
	cache.mu.RUnlock()
	gauge(c.objectsByGroup, s.objects.Load())
	gauge(c.size, s.stored.Load())
	name := schema.GroupResource{Group: group, Resource: resource}.String()
	out <- prometheus.MustNewConstMetric(c.objects, prometheus.GaugeValue, float64(s.objects.Load()), name)
	counter(c.storageEvents, s.received.Load())
	gauge(c.capacity, s.capacity.Load())
	gauge(c.revision, cache.caches.Revision()%revisionModulus)
	gauge(c.watchers, int64(watchers))
	counter(c.received, s.received.Load())
	counter(c.dispatched, s.dispatched.Load())
	counter(c.initializations, s.initializations.Load())
	counter(c.terminated, s.terminated.Load())
	counter(c.initial, s.initial.Load())
	if failures := s.failures.Load(); failures > 0 {
		counter(c.failures, failures)
	}
	s.waits.collect(c.waits, out, labels...)
	s.loads.collect(c.loads, out, labels...)
	for status, count := range map[string]int64{
		"success": s.consistent.Load(), "failure": s.inconsistent.Load(), "error": s.inconclusive.Load(),
	} {
		if count > 0 {
			counter(c.checks, count, status)
		}
	}
	c.shards.collect(&s.shards, gauge, counter)
	c.collectReads(s, counter)
}

// revisionModulus truncates revisions to 15 digits, which a float64 represents exactly.
const revisionModulus = 1e15

// outcome is the number of consistent reads with the same labels.
type outcome struct {
	count             *atomic.Int64
	success, fallback string
}

// SkipsFallback reports whether the feature gate ConsistentListFromCacheSkipTimeoutFallback is enabled: a consistent
// list whose cache lags fails instead of reading from the store.
func SkipsFallback() bool {
	return utilfeature.DefaultFeatureGate.Enabled(features.ConsistentListFromCacheSkipTimeoutFallback)
}

// collectReads exports the counters of reads that are not 0.
func (c *collector) collectReads(s *stats, counter func(*prometheus.Desc, int64, ...string)) {
	lagging := outcome{&s.laggingReads, "true", "true"}
	if SkipsFallback() {
		lagging.success, lagging.fallback = "false", "skipped"
	}
	for _, outcome := range []outcome{
		{&s.consistentReads, "true", "false"}, lagging, {&s.failedReads, "false", "false"},
	} {
		if count := outcome.count.Load(); count > 0 {
			counter(c.consistent, count, outcome.success, outcome.fallback)
		}
	}
	const index = "" // CountList does not know whether an index was used
	if lists := s.fromCache.lists.Load(); lists > 0 {
		counter(c.cacheLists, lists, index)
		counter(c.cacheFetched, s.fromCache.fetched.Load(), index)
		counter(c.cacheReturned, s.fromCache.returned.Load())
	}
	for storage, of := range map[string]*listStats{"etcd": &s.fromStorage, "watchcache": &s.fromCache} {
		if lists := of.lists.Load(); lists > 0 {
			counter(c.storageLists, lists, storage, index)
			counter(c.storageFetched, of.fetched.Load(), storage, index)
			counter(c.storageEvaluated, of.evaluated.Load(), storage)
			counter(c.storageReturned, of.returned.Load(), storage)
		}
	}
}
