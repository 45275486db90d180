package apiserver

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
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
	"quorate.dev/apiserver/crd"
	"quorate.dev/apiserver/informers"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/watchcache"
)

// Hooks that others depend on.
const (
	hookStorage          = "storage-readiness"
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
		{name: "generic-apiserver-start-informers", after: storage, run: forever(s.informers.StartWithContext)},
		{name: hookRBACInformers, after: storage, run: s.followRBAC},
		{name: hookServiceInformers, after: storage, run: s.services.follow},
		{name: "start-apiextensions-controllers", after: storage, run: s.runCustom},
		{name: "apiservices", after: storage, run: s.runAPIServices},
		{name: hookComplete, run: s.completeCatalog},
	}, s.reportedHooks(), []hook{
		{name: "priority-and-fairness-config-consumer", after: bootstrapHooks, run: s.keepFlowSchemaStatus},
		{name: "service-events", after: storage, run: forever(s.services.events.Run)},
		{name: "debug-socket", run: s.serveDebugSocket},
		// The garbage collector and the namespace controller act on what discovery lacks: custom resources whose owner
		// seems to be gone, namespaces that seem empty.
		{name: "controllers", after: append(slices.Clone(bootstrapHooks), hookComplete), leases: true, run: s.runControllers},
	})
}

// storageHooks returns what keeps storage, the watch cache and the machinery of custom resources working.
func (s *Server) storageHooks() []hook {
	storage := []string{hookStorage}
	return []hook{
		{name: hookStorage, run: s.startStorage},
		{name: "watch-cache", after: storage, run: func(ctx context.Context, _ func()) error { return s.caches.Run(ctx) }},
		{name: "compaction", after: storage, run: forever(s.compact)},
		{name: "storage-space", after: storage, run: forever(s.pollSpace)},
		{name: "idle", run: forever(func(ctx context.Context) { s.idle.Run(ctx, s.clock, idleTimeout) })},
	}
}

// reportedHooks returns the post-start hooks that kube-apiserver reports too, in its order.
func (s *Server) reportedHooks() []hook {
	b := bootstrap.New(s.registry.Client(), s.clock, s.logger.WithName("bootstrap"))
	storage := []string{hookStorage}
	list := []hook{
		{name: hookNamespaces, after: storage, run: s.ensure(b, b.NamespacesLoop, b.Namespaces)},
		{name: "start-cluster-authentication-info-controller", after: bootstrapHooks, run: s.keepAuthentication(b)},
	}
	if identityLeases() {
		list = append(list,
			hook{name: "start-kube-apiserver-identity-lease-controller", after: bootstrapHooks, leases: true, run: s.keepIdentity},
			hook{name: "start-kube-apiserver-identity-lease-garbage-collector", after: bootstrapHooks,
				run: s.keep(b.IdentityCleanupLoop)})
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
	return together(ctx, func(ctx context.Context) error {
		s.store.CheckFeatures(ctx, s.clock, s.logger.WithName("storage"))
		return nil
	}, func(ctx context.Context) error {
		select {
		case <-s.store.FeaturesKnown():
		case <-s.clock.After(featuresTimeout):
		case <-ctx.Done():
			return ctx.Err()
		}
		done()
		return nil
	})
}

func (s *Server) compact(ctx context.Context) {
	logger := s.logger.WithName("compaction")
	_ = together(ctx, func(ctx context.Context) error {
		s.store.RunCompaction(ctx, s.config.Etcd.CompactionInterval, s.quota, s.clock, logger)
		return nil
	}, func(ctx context.Context) error {
		s.store.FollowCompaction(ctx, s.clock, logger, s.caches.Compacted)
		return nil
	})
}

func (s *Server) pollSpace(ctx context.Context) {
	s.backend.pollSpace(ctx, s.store, s.config.SpacePollInterval(), s.clock)
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

// keepFlowSchemaStatus keeps the status of FlowSchemas, which reports dangling references.
func (s *Server) keepFlowSchemaStatus(ctx context.Context, _ func()) error {
	_, served := s.catalogs.holder.Current().Find(bootstrap.FlowSchemas)
	if !served || !s.config.Limits.PriorityAndFairness {
		return nil
	}
	changed := bootstrap.NewSignal()
	b := bootstrap.New(s.registry.Client(), s.clock, s.logger.WithName("bootstrap"))
	return together(ctx, s.signalResource(bootstrap.FlowSchemas, changed), s.signalResource(bootstrap.PriorityLevels, changed),
		s.runLoop(b.FlowSchemaStatusLoop(changed)))
}

// signalConfigMap signals when a ConfigMap in kube-system changes, until ctx ends.
func (s *Server) signalConfigMap(name string, changed bootstrap.Signal) func(context.Context) error {
	return func(ctx context.Context) error {
		return s.registry.Client().FollowObject(ctx,
			resource.Key{GroupResource: bootstrap.ConfigMaps, Namespace: metav1.NamespaceSystem, Name: name}, changed.Send)
	}
}

// signalResource signals when an object of a resource changes, until ctx ends.
func (s *Server) signalResource(name schema.GroupResource, changed bootstrap.Signal) func(context.Context) error {
	return func(ctx context.Context) error {
		return s.registry.Client().FollowEntries(ctx, name, func(_, _ *watchcache.Entry) { changed.Send() }, nil)
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
func (s *Server) runCustom(ctx context.Context, _ func()) error {
	if _, served := s.catalogs.holder.Current().Find(crd.Resource); !served {
		s.apiServices.DefinitionsKnown()
		return nil
	}
	return s.custom.Run(ctx)
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
	address := net.JoinHostPort(s.advertised().String(), strconv.Itoa(s.config.Serving.Port))
	done()
	return bootstrap.New(s.registry.Client(), s.clock, s.logger.WithName("identity")).Identity(hostname, address).Run(ctx)
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
