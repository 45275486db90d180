package watchcache

import (
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
)

// shardStats has the metrics of watches with a shardSelector.
type shardStats struct {
	started, open atomic.Int64
	outside       atomic.Int64 // objects of events, before and after, and of initial states that shards do not have
}

// ShardedWatch is an open watch with a shardSelector. A nil ShardedWatch represents a watch without a shardSelector.
type ShardedWatch struct {
	stats *shardStats
	once  sync.Once
}

// StartShardedWatch counts a watch with a shardSelector until Stop.
func (c *Cache) StartShardedWatch() *ShardedWatch {
	c.stats.shards.started.Add(1)
	c.stats.shards.open.Add(1)
	return &ShardedWatch{stats: &c.stats.shards}
}

// Stop ends the watch. Further calls have no effect.
func (s *ShardedWatch) Stop() {
	if s != nil {
		s.once.Do(func() { s.stats.open.Add(-1) })
	}
}

// CountOutsideShard counts an object that a watch rejects because of its shardSelector. As in kube-apiserver
// (filterWithAttrsAndPrefixFunction), an update counts twice: the object before and after.
func (c *Cache) CountOutsideShard() { c.stats.shards.outside.Add(1) }

// shardDescriptions describes the metrics of shardStats. kube-apiserver registers these metrics only with the feature
// gate ShardedListAndWatch.
type shardDescriptions struct{ watches, outside *prometheus.Desc }

func describeShards(perResource func(name, help string, further ...string) *prometheus.Desc) *shardDescriptions {
	if !utilfeature.DefaultFeatureGate.Enabled(features.ShardedListAndWatch) {
		return nil
	}
	return &shardDescriptions{
		watches: perResource("apiserver_watch_shards_total",
			"Number of active sharded watch connections broken by resource type."),
		outside: perResource("apiserver_watch_filtered_events_total",
			"Counter of events filtered out by shard selector during watch dispatch, broken by resource type."),
	}
}

// collect exports the metrics. As in kube-apiserver, a resource without a watch with a shardSelector has no series.
func (d *shardDescriptions) collect(
	s *shardStats, gauge func(*prometheus.Desc, int64), counter func(*prometheus.Desc, int64, ...string),
) {
	if d == nil {
		return
	}
	if s.started.Load() > 0 {
		gauge(d.watches, s.open.Load())
	}
	if outside := s.outside.Load(); outside > 0 {
		counter(d.outside, outside)
	}
}
