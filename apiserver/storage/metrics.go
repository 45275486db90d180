package storage

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/metrics"
	"quorate.dev/apiserver/request"
)

// Metrics has the metrics of all Stores of a server, under kube-apiserver's names.
type Metrics struct {
	clock clock.PassiveClock

	durations        *prometheus.HistogramVec
	lists            *prometheus.HistogramVec
	requests, errors *prometheus.CounterVec
	bookmarks        prometheus.Counter
	leaseObjects     prometheus.Histogram
	refused          prometheus.Counter // writes that soft quotas have refused
}

// storeMetrics has the metrics of one store. A nil storeMetrics records nothing.
type storeMetrics struct {
	*Metrics
	resource func(path string) schema.GroupResource
}

// NewMetrics registers the metrics of requests to etcd and of soft quotas.
func NewMetrics(registerer prometheus.Registerer, clock clock.PassiveClock) *Metrics {
	f := promauto.With(registerer)
	labels := []string{"operation", "group", "resource"}
	buckets := []float64{
		0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60,
	}
	return &Metrics{
		clock: clock,
		durations: f.NewHistogramVec(metrics.Histogram(prometheus.HistogramOpts{
			Name:    "etcd_request_duration_seconds",
			Help:    "[ALPHA] Etcd request latency in seconds for each operation and object type.",
			Buckets: buckets,
		}), labels),
		// Objects are decoded as far as selectors require; the rest follows with the response.
		lists: f.NewHistogramVec(metrics.Histogram(prometheus.HistogramOpts{
			Name: "apiserver_storage_list_duration_seconds",
			Help: "[ALPHA] Latency of the storage layer GetList call in seconds, including object decode, " +
				"split by whether etcd RangeStream was used.",
			Buckets: buckets,
		}), []string{"group", "resource", "streamed"}),
		requests: f.NewCounterVec(prometheus.CounterOpts{
			Name: "etcd_requests_total", Help: "[ALPHA] Etcd request counts for each operation and object type.",
		}, labels),
		errors: f.NewCounterVec(prometheus.CounterOpts{
			Name: "etcd_request_errors_total", Help: "[ALPHA] Etcd failed request counts for each operation and object type.",
		}, labels),
		// One watch stream has the changes of all resources, so that its bookmarks belong to no resource.
		bookmarks: f.NewCounterVec(prometheus.CounterOpts{
			Name: "etcd_bookmark_total", Help: "[ALPHA] Number of etcd bookmarks (progress notify events) split by kind.",
		}, labels[1:]).WithLabelValues("", ""),
		leaseObjects: f.NewHistogram(metrics.Histogram(prometheus.HistogramOpts{
			Name: "etcd_lease_object_counts", Help: "[ALPHA] Number of objects attached to a single etcd lease.",
			Buckets: []float64{10, 50, 100, 500, 1000, 2500, 5000},
		})),
		refused: f.NewCounter(prometheus.CounterOpts{
			Name: "apiserver_storage_soft_quota_refusals_total",
			Help: "[ALPHA] Number of writes refused because they would grow storage beyond its soft quota.",
		}),
	}
}

// Measure makes the store record its requests to etcd. resource returns the resource of a path. Measure must be
// called before the store is used.
func (s *Store) Measure(measured *Metrics, resource func(path string) schema.GroupResource) {
	s.metrics = &storeMetrics{Metrics: measured, resource: resource}
	s.leases.metrics = s.metrics
}

// Count makes the quota count the writes that it refuses. It must be called before the quota is used.
func (q *SoftQuota) Count(measured *Metrics) { q.refused = measured.refused }

// CollectSpace registers the metrics of the databases of all stores. The label storage_cluster_id has a store's
// index.
func CollectSpace(registerer prometheus.Registerer, stores ...*Store) {
	registerer.MustRegister(spaceCollector{stores})
}

func (m *storeMetrics) start() time.Time {
	if m == nil {
		return time.Time{}
	}
	return m.clock.Now()
}

// observe records a request to etcd, in the metrics and in the client's request that ctx belongs to. The callers pass
// no error for a failed precondition.
func (m *storeMetrics) observe(ctx context.Context, operation, path string, began time.Time, err error) {
	if m == nil {
		return
	}
	took := m.clock.Since(began)
	request.From(ctx).TrackStorage(took)
	of := m.resource(path)
	m.durations.WithLabelValues(operation, of.Group, of.Resource).Observe(took.Seconds())
	m.requests.WithLabelValues(operation, of.Group, of.Resource).Inc()
	if err != nil {
		m.errors.WithLabelValues(operation, of.Group, of.Resource).Inc()
	}
}

// observeList records a list, which is one stream or several requests to etcd.
func (m *storeMetrics) observeList(path string, streamed bool, began time.Time) {
	if m == nil {
		return
	}
	of := m.resource(path)
	m.lists.WithLabelValues(of.Group, of.Resource, strconv.FormatBool(streamed)).Observe(m.clock.Since(began).Seconds())
}

// bookmarked counts a progress notification of etcd.
func (m *storeMetrics) bookmarked() {
	if m != nil {
		m.bookmarks.Inc()
	}
}

// leaseReplaced records the final number of objects of a lease, which gets no more of them.
func (m *storeMetrics) leaseReplaced(objects int) {
	if m != nil {
		m.leaseObjects.Observe(float64(objects))
	}
}

// spaceCollector is a prometheus.Collector that measures the databases at each scrape.
type spaceCollector struct{ stores []*Store }

const collectTimeout = time.Second

var (
	sizeDescription = describe("apiserver_storage_size_bytes",
		"[STABLE] Size of the storage database file physically allocated in bytes.")
	inUseDescription = describe("apiserver_storage_in_use_bytes",
		"[ALPHA] Size of the data in the storage database file in bytes.")
	quotaDescription = describe("apiserver_storage_quota_bytes",
		"[ALPHA] Size of the storage database file in bytes at which etcd refuses all writes except deletions.")
	alarmDescription = describe("apiserver_storage_no_space_alarm",
		"[ALPHA] 1 while the NOSPACE alarm of etcd is raised and it refuses all writes except deletions, otherwise 0.")
)

func describe(name, help string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, []string{"storage_cluster_id"}, nil)
}

// Describe implements prometheus.Collector.
func (spaceCollector) Describe(out chan<- *prometheus.Desc) {
	for _, description := range []*prometheus.Desc{sizeDescription, inUseDescription, quotaDescription, alarmDescription} {
		out <- description
	}
}

// Collect implements prometheus.Collector. It omits the values of an etcd that is unavailable.
func (s spaceCollector) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), collectTimeout)
	defer cancel()
	var stores sync.WaitGroup
	defer stores.Wait()
	for i, store := range s.stores {
		stores.Go(func() {
			if now, err := store.Space(ctx); err == nil {
				collectSpace(now, fmt.Sprintf("etcd-%d", i), out)
			}
		})
	}
}

// collectSpace exports the usage of one database, with kube-apiserver's cluster IDs, in which etcd-0 is the default
// etcd.
func collectSpace(now Space, clusterID string, out chan<- prometheus.Metric) {
	gauge := func(description *prometheus.Desc, value float64) {
		out <- prometheus.MustNewConstMetric(description, prometheus.GaugeValue, value, clusterID)
	}
	gauge(sizeDescription, float64(now.Size))
	gauge(inUseDescription, float64(now.InUse))
	if now.Quota > 0 {
		gauge(quotaDescription, float64(now.Quota))
	}
	raised := 0.0
	if now.NoSpace {
		raised = 1
	}
	gauge(alarmDescription, raised)
}
