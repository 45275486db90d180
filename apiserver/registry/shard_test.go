package registry_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"

	"quorate.dev/apiserver/etcd/etcdtest"
	"quorate.dev/apiserver/registry"
	"quorate.dev/apiserver/registry/selection"
	"quorate.dev/apiserver/watchcache"
)

// TestShardMetrics counts open watches of a shard, and the objects that the shard does not have. The metrics exist only
// with the feature gate.
func TestShardMetrics(t *testing.T) {
	w := openWorld(t, etcdtest.Client(t), configMaps())
	w.put(t, "before")
	shard, err := registry.ParseShard( // has no object
		"shardRange(object.metadata.namespace, '0x0000000000000000', '0x0000000000000001')")
	if err != nil {
		t.Fatal(err)
	}
	watch, err := w.registry.Watch(t.Context(), w.target, registry.WatchOptions{
		Selection: selection.Selection{Shard: shard}, InitialEvents: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	last := w.put(t, "after")
	for seen := int64(0); seen < last; {
		var events []registry.WatchEvent
		if events, seen, err = watch.Poll(t.Context()); err != nil || len(events) > 0 {
			t.Fatalf("got %v, %v, want no events", events, err)
		}
	}
	compareShardMetrics(t, w.caches, true, shardMetrics(1))
	watch.Close()
	compareShardMetrics(t, w.caches, true, shardMetrics(0))
	compareShardMetrics(t, w.caches, false, "")
}

// shardMetrics returns the expected metrics after two filtered events, with a number of watches of a shard.
func shardMetrics(watches int) string {
	return fmt.Sprintf(`
# HELP apiserver_watch_filtered_events_total [ALPHA] Counter of events filtered out by shard selector during watch `+
		`dispatch, broken by resource type.
# TYPE apiserver_watch_filtered_events_total counter
apiserver_watch_filtered_events_total{group="",resource="configmaps"} 2
# HELP apiserver_watch_shards_total [ALPHA] Number of active sharded watch connections broken by resource type.
# TYPE apiserver_watch_shards_total gauge
apiserver_watch_shards_total{group="",resource="configmaps"} %d
`, watches)
}

// compareShardMetrics compares the metrics of shards, with and without the feature gate.
func compareShardMetrics(t *testing.T, caches *watchcache.Caches, gate bool, want string) {
	t.Helper()
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.ShardedListAndWatch, gate)
	metrics := prometheus.NewRegistry()
	watchcache.Register(metrics, caches)
	err := testutil.GatherAndCompare(metrics, strings.NewReader(want),
		"apiserver_watch_shards_total", "apiserver_watch_filtered_events_total")
	if err != nil {
		t.Error(err)
	}
}
