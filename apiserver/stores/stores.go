// Package stores opens the etcds in which a replica stores objects: its embedded member or an external etcd, and the
// etcds of --etcd-servers-overrides. Each has a Location with its client, its store and its watch caches; all of them
// share the encryption of values.
//
// Open starts the embedded member and creates everything else without waiting: the hooks of Hooks wait until the etcds
// can be read, and run compaction, watch caches and the measurement of space. A replica can do nothing after its
// embedded member has stopped; Watch reports that. Close is called when no request and no hook uses the stores any
// more.
package stores

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/config"
	"quorate.dev/apiserver/egress"
	"quorate.dev/apiserver/encryption"
	"quorate.dev/apiserver/metrics"
	"quorate.dev/apiserver/registry"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/storage"
	"quorate.dev/apiserver/watchcache"
)

// Options configure Open.
type Options struct {
	Config *config.Config
	// Client is used instead of the etcd that the flags name, if it is set.
	Client *clientv3.Client
	// Catalog has the resources whose values are encrypted.
	Catalog *resource.CatalogHolder
	Egress  egress.Dialers
	// Dial has further options of connections to external etcds.
	Dial    []grpc.DialOption
	Clock   clock.WithTicker
	Logger  logr.Logger
	Metrics *metrics.Registry
}

// Stores are the etcds of a replica.
type Stores struct {
	// Default is the etcd of all resources without an override.
	Default *Location

	config *config.Config
	clock  clock.WithTicker
	logger logr.Logger
	// overrides has the etcds of --etcd-servers-overrides by resource, and others has each of them once.
	overrides map[schema.GroupResource]*Location
	others    []*Location
	// encryption is nil if no values are encrypted.
	encryption *encryption.Configuration
	// orphans is the number of custom resources whose definition does not exist.
	orphans prometheus.Gauge
}

// Location is one etcd in which a replica stores objects, with its store and watch caches.
type Location struct {
	*backend
	registry.Storage
}

// Open loads the encryption configuration, starts the embedded member if there is one, and creates the clients, stores
// and watch caches. The caller must call Close.
func Open(ctx context.Context, o Options) (*Stores, error) {
	s := &Stores{config: o.Config, clock: o.Clock, logger: o.Logger, orphans: newOrphans(o.Metrics)}
	var err error
	if s.encryption, err = loadEncryption(ctx, o.Config.Etcd); err != nil {
		return nil, err
	}
	if err := s.connect(ctx, o); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.createStores(o)
	return s, nil
}

// connect starts the embedded member, or connects to the external etcd, and connects to the etcds of overrides.
func (s *Stores) connect(ctx context.Context, o Options) error {
	if o.Client != nil {
		s.Default = &Location{backend: &backend{Client: o.Client}}
		return nil
	}
	dial := append(slices.Clip(o.Dial), measureRequests(o.Metrics)...)
	b, err := openBackend(ctx, o.Config, o.Egress, o.Logger, dial)
	if err != nil {
		return err
	}
	if b.member != nil {
		measureMember(o.Metrics)
	}
	s.Default = &Location{backend: b}
	return s.connectOverrides(o.Egress, dial)
}

// connectOverrides creates the clients of the etcds in --etcd-servers-overrides. Overrides with the same servers, in
// any order, share one client.
func (s *Stores) connectOverrides(dialers egress.Dialers, options []grpc.DialOption) error {
	overrides, err := s.config.Etcd.Overrides()
	if err != nil {
		return err
	}
	s.overrides = map[schema.GroupResource]*Location{}
	known := map[string]*Location{}
	for _, override := range overrides {
		servers := strings.Join(slices.Sorted(slices.Values(override.Servers)), ";")
		if known[servers] == nil {
			b, err := connectBackend(s.config.Etcd, override.Servers, dialers, options)
			if err != nil {
				return fmt.Errorf("--etcd-servers-overrides: %w", err)
			}
			known[servers] = &Location{backend: b}
			s.others = append(s.others, known[servers])
		}
		s.overrides[override.Resource] = known[servers]
	}
	return nil
}

// createStores creates the stores and watch caches of all etcds.
func (s *Stores) createStores(o Options) {
	measured, encryption := storage.NewMetrics(o.Metrics, s.clock), s.storageEncryption(o.Catalog)
	var stores []*storage.Store
	var caches []*watchcache.Caches
	for _, l := range s.locations() {
		l.Store = storage.New(l.Client, s.config.Etcd.Prefix)
		l.Store.Encrypt(encryption)
		if utilfeature.DefaultFeatureGate.Enabled(features.EtcdRangeStream) {
			l.Store.StreamLists(s.clock)
		}
		l.Store.ShareLeases(int64(s.config.Etcd.LeaseReuseSeconds))
		l.Caches = watchcache.New(l.Store, watchcache.Options{
			Clock: s.clock, Logger: s.logger.WithName("watchcache"), Checks: consistencyInterval(),
		})
		l.Store.Measure(measured, l.Caches.ResourceOf)
		l.Quota = &storage.SoftQuota{Measure: l.space, Percent: int64(s.config.SoftQuota(l.member != nil))}
		l.Quota.Count(measured)
		stores, caches = append(stores, l.Store), append(caches, l.Caches)
	}
	storage.CollectSpace(o.Metrics, stores...)
	watchcache.Register(o.Metrics, caches...)
}

// consistencyInterval returns the interval of consistency checks, or 0 if they are disabled.
func consistencyInterval() time.Duration {
	if !utilfeature.DefaultFeatureGate.Enabled(features.DetectCacheInconsistency) {
		return 0
	}
	return watchcache.ConsistencyInterval
}

// locations returns the default location, once it is open, and the locations of overrides.
func (s *Stores) locations() []*Location {
	if s.Default == nil {
		return nil
	}
	return append([]*Location{s.Default}, s.others...)
}

// Overrides returns the storage of each resource with an override.
func (s *Stores) Overrides() registry.Overrides {
	overrides := registry.Overrides{}
	for resource, l := range s.overrides {
		overrides[resource] = &l.Storage
	}
	return overrides
}

// Uncached returns the resources without a watch cache.
func (s *Stores) Uncached() registry.Uncached {
	// Validate has returned this error.
	resources, _ := s.config.Etcd.Uncached()
	return registry.Uncached{All: !s.config.Etcd.WatchCache, Resources: resources}
}

// LocationOf returns the location of data other than objects, such as allocations, that belongs to a resource of the
// core group.
func (s *Stores) LocationOf(resource string) *Location {
	for _, name := range []string{resource, "*"} {
		if found := s.overrides[schema.GroupResource{Resource: name}]; found != nil {
			return found
		}
	}
	return s.Default
}

// Watch returns an error, which stops the replica, and closes failed if the embedded member stops unexpectedly. It
// returns nil when ctx ends.
func (s *Stores) Watch(ctx context.Context, failed chan<- struct{}) error {
	select {
	case err := <-s.Default.failed():
		if err != nil && ctx.Err() == nil {
			close(failed)
			return fmt.Errorf("the etcd member failed: %w", err)
		}
		return nil
	case <-ctx.Done():
		return nil
	}
}

// closeTimeout bounds Close.
const closeTimeout = 10 * time.Second

// Close closes all etcds concurrently, and then the connections to KMS plugins. An embedded member that is the leader
// first transfers its leadership.
func (s *Stores) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	all := s.locations()
	failures := make(chan error, len(all))
	for _, l := range all {
		go func() { failures <- l.close(ctx) }()
	}
	var err error
	for range all {
		err = errors.Join(err, <-failures)
	}
	if s.encryption != nil {
		s.encryption.Close()
	}
	return err
}
