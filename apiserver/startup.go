package apiserver

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	clientgoinformers "k8s.io/client-go/informers"

	"quorate.dev/apiserver/controllers"
	"quorate.dev/apiserver/controllers/bootstrap"
	"quorate.dev/apiserver/controllers/leadership"
	"quorate.dev/apiserver/crd"
	"quorate.dev/apiserver/informers"
	"quorate.dev/apiserver/resource"
)

// Hooks that others depend on.
const (
	hookStorage          = "storage"
	hookWatchCache       = "watch-cache"
	hookInformers        = "generic-apiserver-start-informers"
	hookDefinitions      = "start-apiextensions-informers"
	hookRBACInformers    = "rbac-informers"
	hookServiceInformers = "service-informers"
	hookComplete         = "mux-and-discovery-complete"

	hookNamespaces        = "start-system-namespaces-controller"
	hookRBAC              = "rbac/bootstrap-roles"
	hookPriorityClasses   = "scheduling/bootstrap-system-priority-classes"
	hookFlowControl       = "priority-and-fairness-config-producer"
	hookServiceCIDR       = "start-kubernetes-service-cidr-controller"
	hookKubernetesService = "bootstrap-controller"
	hookAutoregistration  = "kube-apiserver-autoregistration"
)

// bootstrapHooks create the objects that every cluster has.
var bootstrapHooks = []string{hookNamespaces, hookRBAC, hookPriorityClasses, hookFlowControl}

// startUp returns everything that runs beside the request path of a cluster's server. The order of the reported hooks is
// kube-apiserver's order of health checks; the order in which hooks run follows from their dependencies.
func (s *Server) startUp() []hook {
	storage := []string{hookStorage}
	return slices.Concat(s.storageHooks(), s.encryptionHooks(), []hook{
		{name: "auth-configuration", run: forever(s.auth.run)},
		{name: hookRBACInformers, after: storage, run: s.followRBAC},
		{name: hookServiceInformers, after: storage, run: s.services.follow},
		{name: "apiservices", after: storage, run: s.runAPIServices},
		{name: hookComplete, run: s.completeCatalog},
	}, s.reportedHooks(), []hook{
		{name: "service-events", after: storage, run: forever(s.services.events.Run)},
		{name: "debug-socket", run: s.serveDebugSocket},
		// The garbage collector and the namespace controller act on what discovery lacks: custom resources whose owner
		// seems to be gone, namespaces that seem empty.
		{name: "controllers", after: append(slices.Clone(bootstrapHooks), hookComplete), leases: true, run: s.runControllers},
	})
}

// initializationPoll is the interval at which awaitInitialized looks at the watch caches, as in kube-apiserver.
const initializationPoll = 100 * time.Millisecond

// awaitInitialized waits for the watch caches of all etcds, up to --storage-initialization-timeout. Unlike those of
// kube-apiserver, caches without readers are not initialized.
func (s *Server) awaitInitialized(ctx context.Context, _ func()) error {
	timeout := s.clock.After(s.config.Etcd.InitializationTimeout)
	for {
		if !slices.ContainsFunc(s.locations(), func(l *location) bool { return !l.Caches.Initialized() }) {
			return nil
		}
		select {
		case <-s.clock.After(initializationPoll):
		case <-timeout:
			s.logger.Info("The watch caches are not initialized after --storage-initialization-timeout; continuing")
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}

// storageHooks returns what keeps storage, the watch cache and the machinery of custom resources working.
func (s *Server) storageHooks() []hook {
	storage := []string{hookStorage}
	return []hook{
		{name: hookStorage, run: s.startStorage},
		{name: hookWatchCache, after: storage, run: func(ctx context.Context, done func()) error {
			done()
			return s.forLocations(func(ctx context.Context, l *location) error { return l.Caches.Run(ctx) })(ctx, done)
		}},
		{name: "compaction", after: storage, run: s.forLocations(s.compact)},
		{name: "storage-handover", run: s.forLocations(s.repeatLostWrites)},
		{name: "storage-space", after: storage, run: s.forLocations(s.pollSpace)},
		{name: "idle", run: forever(func(ctx context.Context) { s.idle.Run(ctx, s.clock, idleTimeout) })},
		{name: "memory", run: forever(s.watchMemory)},
	}
}

// reportedHooks returns the post-start hooks that kube-apiserver reports too, in its order.
func (s *Server) reportedHooks() []hook {
	b := bootstrap.New(s.registry.Client(), s.clock, s.logger.WithName("bootstrap"))
	storage := []string{hookStorage}
	list := slices.Concat([]hook{
		// Admission plugins read through the informers, and through a mapper that follows the catalog.
		{name: "start-apiserver-admission-initializer", after: []string{hookInformers, hookComplete}, run: finished},
		{name: hookInformers, after: storage, run: forever(s.informers.StartWithContext)},
	}, s.fairnessHooks(), []hook{
		{name: hookDefinitions, after: storage, run: s.runCustom},
		{name: "start-apiextensions-controllers", after: []string{hookDefinitions}, run: s.awaitDefinitionControllers},
		{name: "crd-informer-synced", run: await(s.custom.Synced())},
		{name: hookNamespaces, after: storage, run: s.ensure(b, b.NamespacesLoop, b.Namespaces)},
	})
	if electsLeaders() {
		list = append(list, hook{name: "start-kube-apiserver-coordinated-leader-election-controller", after: []string{hookComplete},
			leases: true, run: s.electLeaders})
	}
	list = append(list, s.peerHooks()...)
	list = append(list,
		hook{name: "start-cluster-authentication-info-controller", after: bootstrapHooks, run: s.keepAuthentication(b)})
	if identityLeases() {
		list = append(list,
			hook{name: "start-kube-apiserver-identity-lease-controller", after: bootstrapHooks, leases: true, run: s.keepIdentity},
			hook{name: "start-kube-apiserver-identity-lease-garbage-collector", after: bootstrapHooks,
				run: s.keep(b.IdentityCleanupLoop)})
	}
	if utilfeature.DefaultFeatureGate.Enabled(features.WatchCacheInitializationPostStartHook) {
		list = append(list, hook{name: "storage-readiness", run: s.awaitInitialized})
	}
	list = append(list,
		hook{name: "start-legacy-token-tracking-controller", after: bootstrapHooks, run: s.keepLegacyTokens(b)},
		hook{name: "start-service-ip-repair-controllers", after: []string{hookServiceInformers, hookServiceCIDR},
			run: s.services.repairs.Run},
		hook{name: hookRBAC, after: storage, run: s.ensureRBAC(b)},
		hook{name: hookPriorityClasses, after: storage, run: s.ensure(b, nil, b.PriorityClasses)},
		hook{name: hookFlowControl, after: storage, run: s.ensure(b, b.FlowControlLoop, b.FlowControl)},
		hook{name: hookKubernetesService, after: storage, leases: true, run: s.services.kubernetes.Serve},
		hook{name: hookServiceCIDR, after: storage, run: s.services.cidr.Run},
	)
	if s.aggregation.proxy.HasCertificate() { // serving reloads the files
		list = append(list, hook{name: "aggregator-reload-proxy-client-cert", run: begin(func(context.Context) {})})
	}
	list = append(list,
		hook{name: "start-kube-aggregator-informers", run: await(s.apiServices.Known())},
		hook{name: "apiservice-status-local-available-controller", run: await(s.apiServices.Began())},
		hook{name: "apiservice-status-remote-available-controller", after: storage, run: s.aggregation.runAvailability},
		hook{name: "apiservice-registration-controller", run: await(s.apiServices.Known())},
		hook{name: "apiservice-discovery-controller", after: storage, run: s.aggregation.runDiscovery},
		hook{name: hookAutoregistration, run: await(s.apiServices.Began())},
		hook{name: "apiservice-openapi-controller", after: storage, run: begin(s.aggregation.documents.RunOpenAPIV2)},
		hook{name: "apiservice-openapiv3-controller", after: storage, run: begin(s.aggregation.documents.RunOpenAPIV3)},
	)
	for i := range list {
		list[i].check = list[i].name != hookRBAC || s.hasRBAC()
	}
	return list
}

// idleTimeout is the time after which the machinery of an unused custom resource is dropped.
const idleTimeout = 10 * time.Minute

// hasRBAC reports whether mode RBAC decides. As in kube-apiserver, without it the bootstrap policy is not created.
func (s *Server) hasRBAC() bool { return s.authConfiguration.authorization.Has("RBAC") }

func (s *Server) ensureRBAC(b *bootstrap.Bootstrap) func(context.Context, func()) error {
	if !s.hasRBAC() {
		return s.ensure(b, nil)
	}
	return s.ensure(b, nil, b.ClusterPolicy, s.awaitHook(hookNamespaces), b.NamespacedPolicy)
}

// identityLeases reports whether replicas announce themselves by a Lease in kube-system.
func identityLeases() bool { return utilfeature.DefaultFeatureGate.Enabled(features.APIServerIdentity) }

// featuresTimeout bounds how long start-up waits for the version of etcd. Until it is known, clients that resume their
// watches have to list again.
const featuresTimeout = 2 * time.Second

// startStorage waits until storage can be read and its features are known, or featuresTimeout has passed.
func (s *Server) startStorage(ctx context.Context, done func()) error {
	if err := s.backend.awaitReady(ctx); err != nil {
		return err
	}
	checkFeatures := s.forLocations(func(ctx context.Context, l *location) error {
		l.Store.CheckFeatures(ctx, s.clock, s.logger.WithName("storage"))
		return nil
	})
	return together(ctx, func(ctx context.Context) error { return checkFeatures(ctx, nil) }, func(ctx context.Context) error {
		if err := s.awaitFeatures(ctx); err != nil {
			return err
		}
		done()
		return nil
	})
}

// awaitFeatures returns when the features of all etcds are known, or after featuresTimeout.
func (s *Server) awaitFeatures(ctx context.Context) error {
	timeout := s.clock.After(featuresTimeout)
	for _, l := range s.locations() {
		select {
		case <-l.Store.FeaturesKnown():
		case <-timeout:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (s *Server) compact(ctx context.Context, l *location) error {
	logger := s.logger.WithName("compaction")
	return together(ctx, func(ctx context.Context) error {
		l.Store.RunCompaction(ctx, s.config.Etcd.CompactionInterval, l.Quota, s.clock, logger)
		return nil
	}, func(ctx context.Context) error {
		l.Store.FollowCompaction(ctx, s.clock, logger, l.Caches.Compacted)
		return nil
	})
}

func (s *Server) repeatLostWrites(ctx context.Context, l *location) error {
	if l.member != nil {
		l.Store.RepeatLostWrites(ctx, l.member.LeaderChanged, s.clock)
	}
	return nil
}

func (s *Server) pollSpace(ctx context.Context, l *location) error {
	l.backend.pollSpace(ctx, l.Store, s.config.SpacePollInterval(), s.clock)
	return nil
}

// ensure retries each step until it succeeds or Insist gives up, in which case the replica ends. Then it runs the loop,
// if there is one.
func (s *Server) ensure(b *bootstrap.Bootstrap, loop func() bootstrap.Loop, steps ...func(context.Context) error) func(context.Context, func()) error {
	return func(ctx context.Context, done func()) error {
		for _, step := range steps {
			if err := b.Insist(ctx, step); err != nil {
				return err
			}
		}
		done()
		if loop == nil {
			return nil
		}
		return s.runLoop(loop())(ctx)
	}
}

// keep runs a loop until ctx ends. The hook is done when the loop starts.
func (s *Server) keep(loop func() bootstrap.Loop) func(context.Context, func()) error {
	return func(ctx context.Context, done func()) error {
		done()
		return s.runLoop(loop())(ctx)
	}
}

func (s *Server) runLoop(loop bootstrap.Loop) func(context.Context) error {
	return func(ctx context.Context) error {
		loop.Run(ctx, s.clock, s.logger.WithName("bootstrap"))
		return nil
	}
}

func (s *Server) awaitHook(name string) func(context.Context) error {
	return func(ctx context.Context) error {
		select {
		case <-s.hooks.done[name]:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// keepAuthentication publishes how this server authenticates in the ConfigMap extension-apiserver-authentication.
func (s *Server) keepAuthentication(b *bootstrap.Bootstrap) func(context.Context, func()) error {
	return func(ctx context.Context, done func()) error {
		done()
		loop := b.AuthenticationLoop(s.auth.published(s.config.Authentication), s.auth.changed)
		return together(ctx, s.signalConfigMap(bootstrap.AuthenticationConfigMap, s.auth.changed), s.runLoop(loop))
	}
}

func (s *Server) keepLegacyTokens(b *bootstrap.Bootstrap) func(context.Context, func()) error {
	return func(ctx context.Context, done func()) error {
		done()
		changed := bootstrap.NewSignal()
		return together(ctx, s.signalConfigMap(bootstrap.LegacyTokensConfigMap, changed), s.runLoop(b.LegacyTokensLoop(changed)))
	}
}

// signalConfigMap signals when a ConfigMap in kube-system changes, until ctx ends.
func (s *Server) signalConfigMap(name string, changed bootstrap.Signal) func(context.Context) error {
	return func(ctx context.Context) error {
		return s.registry.Client().FollowObject(ctx,
			resource.Key{GroupResource: bootstrap.ConfigMaps, Namespace: metav1.NamespaceSystem, Name: name}, changed.Send)
	}
}

// feed delivers the objects of one resource: all that exist at the start, then each change. A nil object is a deletion.
type feed struct {
	resource schema.GroupResource
	handle   func(key string, object runtime.Object)
}

// follow runs feeds until ctx ends, and calls done when want of them have delivered what existed at the start.
func (s *Server) follow(ctx context.Context, feeds []feed, want int, done func()) error {
	var pending atomic.Int32
	pending.Store(int32(want))
	functions := make([]func(context.Context) error, 0, len(feeds))
	for _, f := range feeds {
		functions = append(functions, func(ctx context.Context) error {
			return s.registry.Client().Follow(ctx, f.resource, f.handle, func() {
				if pending.Add(-1) == 0 {
					done()
				}
			})
		})
	}
	functions = append(functions, func(ctx context.Context) error {
		<-ctx.Done()
		return nil
	})
	return together(ctx, functions...)
}

// runCustom serves custom resources until ctx ends. When --runtime-config disables CustomResourceDefinitions, there are
// none; the check crd-informer-synced then fails forever, as kube-apiserver's does.
func (s *Server) runCustom(ctx context.Context, done func()) error {
	done()
	if _, served := s.catalogs.holder.Current().Find(crd.Resource); !served {
		s.apiServices.DefinitionsKnown()
		return nil
	}
	return s.custom.Run(ctx)
}

// awaitDefinitionControllers waits until the controller of CustomResourceDefinitions works, if they are served.
func (s *Server) awaitDefinitionControllers(ctx context.Context, done func()) error {
	if _, served := s.catalogs.holder.Current().Find(crd.Resource); !served {
		return nil
	}
	return await(s.custom.Known())(ctx, done)
}

// completeCatalog closes s.complete when all objects that existed at the start and define resources are known.
func (s *Server) completeCatalog(ctx context.Context, _ func()) error {
	for _, known := range s.mode.known() {
		select {
		case <-known:
		case <-ctx.Done():
			return nil
		}
	}
	close(s.complete)
	return nil
}

func (s *Server) runAPIServices(ctx context.Context, _ func()) error { return s.apiServices.Run(ctx) }

// keepIdentity renews the Lease of this replica until ctx ends, then deletes it.
func (s *Server) keepIdentity(ctx context.Context, done func()) error {
	hostname, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("the host name identifies the replica: %w", err)
	}
	ip, port := s.peerAddress()
	done()
	return bootstrap.New(s.registry.Client(), s.clock, s.logger.WithName("identity")).
		Identity(hostname, net.JoinHostPort(ip, port)).Run(ctx)
}

// electsLeaders reports whether the controller of coordinated leader election runs.
func electsLeaders() bool {
	return utilfeature.DefaultFeatureGate.Enabled(features.CoordinatedLeaderElection)
}

// electLeaders elects the leaders of components that have LeaseCandidates, until ctx ends.
func (s *Server) electLeaders(ctx context.Context, done func()) error {
	done()
	return leadership.Run(ctx, s.local(s.userAgent()), s.config.Leadership)
}

// runControllers runs the enabled controllers of kube-controller-manager, as clients of this server that need no
// network.
func (s *Server) runControllers(ctx context.Context, _ func()) error {
	if len(s.config.Controllers.Enabled) == 0 {
		return nil
	}
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("the host name identifies the holder of the controllers' lease: %w", err)
	}
	return controllers.Run(ctx, controllers.Options{
		Enabled: s.config.Controllers.Enabled,
		Client:  s.local("quorate-controllers"),
		Informers: func() clientgoinformers.SharedInformerFactory {
			return informers.All(s.informerOptions(s.client, s.catalogs.holder))
		},
		Identity: host + "_" + uuid.NewString(),
		Clock:    s.clock,
		Logger:   s.logger.WithName("controllers"),
	})
}
