package apiserver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"quorate.dev/apiserver/config"
	"quorate.dev/apiserver/egress"
	"quorate.dev/apiserver/registry"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/serving"
	"quorate.dev/apiserver/storage"
	"quorate.dev/apiserver/watchcache"
)

// location is one etcd in which this server stores objects, with its store and caches.
type location struct {
	*backend
	registry.Storage
}

// openOverrides creates the clients of the etcds of --etcd-servers-overrides. Overrides with the same servers, in any
// order, share one.
func openOverrides(
	c *config.Config, dialers egress.Dialers, options []grpc.DialOption,
) (all []*location, overrides map[schema.GroupResource]*location, err error) {
	wanted, err := c.Etcd.Overrides()
	if err != nil {
		return nil, nil, err
	}
	overrides = map[schema.GroupResource]*location{}
	known := map[string]*location{}
	for _, override := range wanted {
		key := strings.Join(slices.Sorted(slices.Values(override.Servers)), ";")
		if known[key] == nil {
			b, err := connectBackend(c.Etcd, override.Servers, dialers, options)
			if err != nil {
				return all, nil, fmt.Errorf("--etcd-servers-overrides: %w", err)
			}
			known[key] = &location{backend: b}
			all = append(all, known[key])
		}
		overrides[override.Resource] = known[key]
	}
	return all, overrides, nil
}

// locations returns the default location and those of overrides.
func (s *Server) locations() []*location { return append([]*location{&s.location}, s.others...) }

// composeLocations creates the stores and caches of all etcds.
func (s *Server) composeLocations(holder *resource.CatalogHolder) {
	metrics, encryption := storage.NewMetrics(s.metrics, s.clock), s.storageEncryption(holder)
	var stores []*storage.Store
	var caches []*watchcache.Caches
	for _, l := range s.locations() {
		l.Store = storage.New(l.client, s.config.Etcd.Prefix)
		l.Store.Encrypt(encryption)
		l.Store.ShareLeases(int64(s.config.Etcd.LeaseReuseSeconds))
		l.Caches = watchcache.New(l.Store, watchcache.Options{
			Clock: s.clock, Logger: s.logger.WithName("watchcache"), Checks: consistencyInterval(),
		})
		l.Store.Measure(metrics, l.Caches.ResourceOf)
		l.Quota = &storage.SoftQuota{Measure: l.space, Percent: int64(s.config.SoftQuota(l.member != nil))}
		l.Quota.Count(metrics)
		stores, caches = append(stores, l.Store), append(caches, l.Caches)
	}
	storage.CollectSpace(s.metrics, stores...)
	watchcache.Register(s.metrics, caches...)
}

// uncached returns the resources without a watch cache.
func (s *Server) uncached() registry.Uncached {
	resources, _ := s.config.Etcd.Uncached() // Validate has returned the error
	return registry.Uncached{All: !s.config.Etcd.WatchCache, Resources: resources}
}

// consistencyInterval returns the interval of consistency checks, 0 if they are disabled.
func consistencyInterval() time.Duration {
	if !utilfeature.DefaultFeatureGate.Enabled(features.DetectCacheInconsistency) {
		return 0
	}
	return watchcache.ConsistencyInterval
}

// storageOverrides returns the Storages of the overrides.
func (s *Server) storageOverrides() registry.Overrides {
	overrides := registry.Overrides{}
	for resource, l := range s.overrides {
		overrides[resource] = &l.Storage
	}
	return overrides
}

// locationOf returns the location of what the server stores for a resource of the core group beside its objects.
func (s *Server) locationOf(resource string) *location {
	for _, name := range []string{resource, "*"} {
		if found := s.overrides[schema.GroupResource{Resource: name}]; found != nil {
			return found
		}
	}
	return &s.location
}

// etcdMembers returns a health check for each endpoint of all etcds, for ComponentStatus.
func (s *Server) etcdMembers() (checks []func(context.Context) error) {
	for _, l := range s.locations() {
		checks = append(checks, l.members()...)
	}
	return checks
}

// forLocations returns the run of a hook that runs a function for each etcd until ctx ends.
func (s *Server) forLocations(run func(context.Context, *location) error) func(context.Context, func()) error {
	return func(ctx context.Context, _ func()) error {
		var functions []func(context.Context) error
		for _, l := range s.locations() {
			functions = append(functions, func(ctx context.Context) error { return run(ctx, l) })
		}
		return together(ctx, functions...)
	}
}

// closeLocations closes all etcds concurrently.
func (s *Server) closeLocations(ctx context.Context) error {
	all := s.locations()
	failures := make(chan error, len(all))
	for _, l := range all {
		go func() { failures <- l.close(ctx) }()
	}
	var err error
	for range all {
		err = errors.Join(err, <-failures)
	}
	return err
}

// addEtcdChecks adds the health checks of all etcds, with kube-apiserver's names and in its order.
func (s *Server) addEtcdChecks() {
	s.addEtcdCheck(&s.location, "etcd", "etcd-readiness")
	for i, l := range s.others {
		s.addEtcdCheck(l, fmt.Sprintf("etcd-override-%d", i), fmt.Sprintf("etcd-override-readiness-%d", i))
	}
}

func (s *Server) addEtcdCheck(l *location, health, readiness string) {
	healthTimeout, readyTimeout := s.config.Etcd.CheckTimeouts()
	check := l.check(healthTimeout)
	s.health.Add(serving.Healthz|serving.Livez, serving.Check{Name: health, Group: "etcd", Run: check, StartUp: true})
	s.health.Add(serving.Readyz, serving.Check{Name: health, Group: "etcd", Run: check})
	s.health.Add(serving.Readyz, serving.Check{Name: readiness, Group: "etcd-readiness", Run: l.check(readyTimeout)})
}

// check returns a health check that does a linearizable read within a timeout.
func (l *location) check(timeout time.Duration) func(context.Context) error {
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		_, err := l.Store.Revision(ctx)
		return err
	}
}

// checkSpace fails while an etcd or this server rejects writes because a database is full. It is advisory, because reads
// still work and deletions are how users make space.
func (s *Server) checkSpace(context.Context) error {
	for _, l := range s.locations() {
		space := l.space()
		switch {
		case space.DiskFree < space.DiskReserve:
			return errors.New("the file system of etcd is nearly full: objects cannot be created or grow")
		case space.NoSpace:
			return errors.New("alarm NOSPACE: etcd rejects all writes except deletions until its database has space")
		case l.Quota.Exceeded():
			return errors.New("soft quota exceeded: objects cannot be created or grow")
		}
	}
	return nil
}
