package storage_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/runtime/schema"
	testclock "k8s.io/utils/clock/testing"

	"quorate.dev/apiserver/etcd/etcdtest"
	"quorate.dev/apiserver/storage"
)

// TestMetrics counts requests to etcd by operation and resource. A write whose condition does not hold is no error. Two
// objects share a lease, until an object with another TTL gets another lease.
func TestMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	store := storage.New(etcdtest.Client(t), "/registry")
	store.ShareLeases(60)
	store.Measure(storage.NewMetrics(registry, testclock.NewFakePassiveClock(time.Now())),
		func(path string) schema.GroupResource {
			resource, _, _ := strings.Cut(path, "/")
			return schema.GroupResource{Resource: resource}
		})
	for path, ttl := range map[string]time.Duration{"pods/a": 0, "events/a": time.Hour, "events/b": time.Hour} {
		if _, err := store.Create(t.Context(), path, []byte("1"), ttl); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := store.Create(t.Context(), "events/c", []byte("1"), time.Minute); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Create(t.Context(), "pods/a", []byte("1"), 0); !errors.Is(err, storage.ErrExists) {
		t.Errorf("got %v, want ErrExists", err)
	}
	if _, err := store.Get(t.Context(), "pods/a"); err != nil {
		t.Error(err)
	}
	if _, err := store.Revision(t.Context()); err != nil {
		t.Error(err)
	}
	const want = `
# HELP etcd_requests_total [ALPHA] Etcd request counts for each operation and object type.
# TYPE etcd_requests_total counter
etcd_requests_total{group="",operation="create",resource="events"} 3
etcd_requests_total{group="",operation="create",resource="pods"} 2
etcd_requests_total{group="",operation="get",resource="pods"} 1
etcd_requests_total{group="",operation="getCurrentResourceVersion",resource=""} 1
# HELP etcd_lease_object_counts [ALPHA] Number of objects attached to a single etcd lease.
# TYPE etcd_lease_object_counts histogram
etcd_lease_object_counts_bucket{le="10"} 1
etcd_lease_object_counts_bucket{le="50"} 1
etcd_lease_object_counts_bucket{le="100"} 1
etcd_lease_object_counts_bucket{le="500"} 1
etcd_lease_object_counts_bucket{le="1000"} 1
etcd_lease_object_counts_bucket{le="2500"} 1
etcd_lease_object_counts_bucket{le="5000"} 1
etcd_lease_object_counts_bucket{le="+Inf"} 1
etcd_lease_object_counts_sum 2
etcd_lease_object_counts_count 1
`
	err := testutil.GatherAndCompare(registry, strings.NewReader(want),
		"etcd_requests_total", "etcd_request_errors_total", "etcd_lease_object_counts")
	if err != nil {
		t.Error(err)
	}
}

// TestSpaceMetrics exports the size of the database of each store, with the store's index.
func TestSpaceMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	storage.CollectSpace(registry,
		storage.New(etcdtest.Client(t), "/registry"), storage.New(etcdtest.Client(t), "/registry"))
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.Metric {
			values[family.GetName()+" "+metric.Label[0].GetValue()] = metric.GetGauge().GetValue()
		}
	}
	for _, cluster := range []string{"etcd-0", "etcd-1"} {
		size, inUse := values["apiserver_storage_size_bytes "+cluster], values["apiserver_storage_in_use_bytes "+cluster]
		if inUse <= 0 || size < inUse {
			t.Errorf("%s has %v bytes, of which %v are in use", cluster, size, inUse)
		}
		if raised, known := values["apiserver_storage_no_space_alarm "+cluster]; !known || raised != 0 {
			t.Errorf("the alarm of %s is %v", cluster, raised)
		}
	}
}
