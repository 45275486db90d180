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
	"quorate.dev/apiserver/informers"
	"quorate.dev/apiserver/memory"
	"quorate.dev/apiserver/registry/client"
	"quorate.dev/apiserver/registry/follow"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/startup"
	"quorate.dev/apiserver/stores"
)

// These are the names of the hooks that other hooks depend on.
const (
	hookStorage          = stores.HookReadable
	hookInformers        = "generic-apiserver-start-informers"
	hookDefinitions      = "start-apiextensions-informers"
	hookRBACInformers    = "rbac-informers"
	hookServiceInformers = "service-informers"
	hookComplete         = "mux-and-discovery-complete"

	hookNamespaces        = "start-system-namespaces-controller"
	hookClusterPolicy     = "rbac-cluster-policy"
	hookRBAC              = "rbac/bootstrap-roles"
	hookPriorityClasses   = "scheduling/bootstrap-system-priority-classes"
	hookFlowControl       = "priority-and-fairness-config-producer"
	hookServiceCIDR       = "start-kubernetes-service-cidr-controller"
	hookKubernetesService = "bootstrap-controller"
	hookAutoregistration  = "kube-apiserver-autoregistration"
	hookIdentity          = "start-kube-apiserver-identity-lease-controller"
	hookStorageVersions   = "built-in-resources-storage-version-updater"
)

// bootstrapHooks create the objects that every cluster has.
var bootstrapHooks = []string{hookNamespaces, hookRBAC, hookPriorityClasses, hookFlowControl}

// startUp returns the hooks of a cluster's server. The reported hooks are in kube-apiserver's order of health checks;
// the order in which hooks run results from their dependencies.
func (s *cluster) startUp() startup.Sequence {
	b := bootstrap.New(s.objects.Named("bootstrap"), s.clock, s.logger.WithName("bootstrap"))
	storage := []string{hookStorage}
	sequence := slices.Concat(s.stores.Hooks(), s.housekeeping(), startup.Sequence{
		{Name: "auth-configuration", Run: startup.Forever(s.auth.run)},
		{Name: hookRBACInformers, After: storage, Run: s.followRBAC},
		{Name: hookServiceInformers, After: storage, Run: s.services.follow},
		{Name: "apiservices", After: storage, Run: s.runAPIServices},
		{Name: hookComplete, Run: s.completeCatalog},
	}, s.policyHooks(b), s.reportedHooks(b), startup.Sequence{
		{Name: "service-events", Restarts: true, After: storage, Run: startup.Forever(s.services.events.Run)},
		{Name: "debug-socket", Run: s.serveDebugSocket},
		// The garbage collector and the namespace controller act on what discovery lacks: custom resources whose owner
		// seems to be gone, namespaces that seem empty.
		{
			Name: "controllers", Restarts: true, After: append(slices.Clone(bootstrapHooks), hookComplete),
			Leases: true, Run: s.runControllers,
		},
	})
	if s.storageVersions != nil {
		awaitStorageVersions(sequence)
	}
	return sequence
}

// housekeeping returns the hooks of memory and idle custom resources.
func (s *Server) housekeeping() startup.Sequence {
	return startup.Sequence{
		{
			Name: "idle", Restarts: true, Run: startup.Forever(func(ctx context.Context) {
				s.idle.Run(ctx, s.clock, idleTimeout)
			}),
		},
		{Name: "memory", Restarts: true, Run: startup.Forever(func(ctx context.Context) { s.memory.watch(ctx, s.clock) })},
		{Name: "idle-memory", Restarts: true, Run: startup.Forever(func(ctx context.Context) {
			memory.ReturnWhenIdle(ctx, s.clock)
		})},
	}
}

// reportedHooks returns the post-start hooks that kube-apiserver also reports, in its order.
func (s *cluster) reportedHooks(b *bootstrap.Bootstrap) startup.Sequence {
	storage := []string{hookStorage}
	list := slices.Concat(startup.Sequence{
		// Admission plugins read through the informers, and through a mapper that follows the catalog.
		{Name: "start-apiserver-admission-initializer", After: []string{hookInformers, hookComplete}, Run: startup.Finished},
		{Name: hookInformers, After: storage, Run: s.runInformers},
	}, s.fairnessHooks(), startup.Sequence{
		{Name: hookDefinitions, After: storage, Run: s.runCustom},
		{Name: "start-apiextensions-controllers", After: []string{hookDefinitions}, Run: s.awaitDefinitionControllers},
		{Name: "crd-informer-synced", Run: startup.Await(s.custom.Synced())},
		{Name: hookNamespaces, Restarts: true, After: storage, Run: s.ensure(b, b.NamespacesLoop, b.Namespaces)},
	})
	if electsLeaders() {
		list = append(list,
			startup.Hook{Name: "start-kube-apiserver-coordinated-leader-election-controller", Restarts: true,
				After: []string{hookComplete}, Leases: true, Run: s.electLeaders})
	}
	list = append(list, s.peerHooks()...)
	list = append(list,
		startup.Hook{
			Name: "start-cluster-authentication-info-controller", Restarts: true, After: bootstrapHooks,
			Run: s.keepAuthentication(b),
		})
	list = append(list, s.identityHooks(b)...)
	list = append(list,
		startup.Hook{Name: "storage-readiness", Run: s.stores.AwaitInitialized},
		startup.Hook{
			Name: "start-legacy-token-tracking-controller", Restarts: true, After: bootstrapHooks, Run: s.keepLegacyTokens(b),
		},
		startup.Hook{Name: "start-service-ip-repair-controllers", After: []string{hookServiceInformers, hookServiceCIDR},
			Run: s.services.repairs.Run},
		s.ensureRBAC(b),
		startup.Hook{Name: hookPriorityClasses, Restarts: true, After: storage, Run: s.ensure(b, nil, b.PriorityClasses)},
		startup.Hook{
			Name: hookFlowControl, Restarts: true, After: storage, Run: s.ensure(b, b.FlowControlLoop, b.FlowControl),
		},
		startup.Hook{Name: hookKubernetesService, After: storage, Leases: true, Run: s.services.kubernetes.Serve},
		startup.Hook{Name: hookServiceCIDR, After: storage, Run: s.services.cidr.Run},
	)
	// Package serving reloads the files.
	if s.aggregation.proxy.HasCertificate() {
		list = append(list, startup.Hook{
			Name: "aggregator-reload-proxy-client-cert", Run: startup.Begin(func(context.Context) {}),
		})
	}
	list = append(list,
		startup.Hook{Name: "start-kube-aggregator-informers", Run: startup.Await(s.apiServices.Known())},
		startup.Hook{Name: "apiservice-status-local-available-controller", Run: startup.Await(s.apiServices.Began())},
		startup.Hook{
			Name: "apiservice-status-remote-available-controller", After: storage, Run: s.aggregation.runAvailability,
		},
		startup.Hook{Name: "apiservice-registration-controller", Run: startup.Await(s.apiServices.Known())},
		startup.Hook{Name: "apiservice-discovery-controller", After: storage, Run: s.aggregation.runDiscovery},
	)
	list = append(list, s.storageVersionHooks()...)
	list = append(list,
		startup.Hook{Name: hookAutoregistration, Run: startup.Await(s.apiServices.Began())},
		startup.Hook{
			Name: "apiservice-openapi-controller", After: storage, Run: startup.Begin(s.aggregation.documents.RunOpenAPIV2),
		},
		startup.Hook{
			Name: "apiservice-openapiv3-controller", After: storage, Run: startup.Begin(s.aggregation.documents.RunOpenAPIV3),
		},
	)
	for i := range list {
		list[i].Check = list[i].Name != hookRBAC || s.hasRBAC()
	}
	return list
}

// identityHooks returns the hooks of the identity Leases of replicas.
func (s *cluster) identityHooks(b *bootstrap.Bootstrap) startup.Sequence {
	if !identityLeases() {
		return nil
	}
	return startup.Sequence{
		{Name: hookIdentity, Restarts: true, After: bootstrapHooks, Leases: true, Run: s.keepIdentity},
		{
			Name: "start-kube-apiserver-identity-lease-garbage-collector", Restarts: true, After: bootstrapHooks,
			Run: s.keep(b.IdentityCleanupLoop),
		},
	}
}

// idleTimeout is the time after which the schemas, validators and converters of an unused custom resource are dropped.
const idleTimeout = 10 * time.Minute

// hasRBAC reports whether the authorization mode RBAC is enabled. As in kube-apiserver, the bootstrap policy is not
// created without it.
func (s *cluster) hasRBAC() bool { return s.configuration.authorization.Has("RBAC") }

// policyHooks returns the hook that creates the cluster roles and their bindings. The roles in system namespaces, which
// hookRBAC creates, also need the namespaces.
func (s *cluster) policyHooks(b *bootstrap.Bootstrap) startup.Sequence {
	if !s.hasRBAC() {
		return nil
	}
	return startup.Sequence{{
		Name: hookClusterPolicy, Restarts: true, After: []string{hookStorage}, Run: s.ensure(b, nil, b.ClusterPolicy),
	}}
}

// ensureRBAC returns the hook hookRBAC, which is done when the bootstrap policy exists.
func (s *cluster) ensureRBAC(b *bootstrap.Bootstrap) startup.Hook {
	if !s.hasRBAC() {
		return startup.Hook{Name: hookRBAC, After: []string{hookStorage}, Run: startup.Finished}
	}
	return startup.Hook{
		Name: hookRBAC, Restarts: true, After: []string{hookClusterPolicy, hookNamespaces},
		Run: s.ensure(b, nil, b.NamespacedPolicy),
	}
}

// identityLeases reports whether each replica has an identity Lease in kube-system.
func identityLeases() bool { return utilfeature.DefaultFeatureGate.Enabled(features.APIServerIdentity) }

// ensure returns the run of a hook that retries each step until it succeeds or Retry gives up, which stops the
// replica. Then the hook is done and runs the loop, if there is one.
func (s *cluster) ensure(
	b *bootstrap.Bootstrap, loop func() bootstrap.Loop, steps ...func(context.Context) error,
) startup.Run {
	return func(ctx context.Context, done func()) error {
		for _, step := range steps {
			if err := b.Retry(ctx, step); err != nil {
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

// keep returns the run of a hook that runs a loop until ctx ends. The hook is done when the loop starts.
func (s *cluster) keep(loop func() bootstrap.Loop) startup.Run {
	return func(ctx context.Context, done func()) error {
		done()
		return s.runLoop(loop())(ctx)
	}
}

func (s *cluster) runLoop(loop bootstrap.Loop) func(context.Context) error {
	return func(ctx context.Context) error {
		loop.Run(ctx, s.clock, s.logger.WithName("bootstrap"))
		return nil
	}
}

// keepAuthentication returns the run of the hook that publishes this server's authentication configuration in the
// ConfigMap extension-apiserver-authentication.
func (s *cluster) keepAuthentication(b *bootstrap.Bootstrap) startup.Run {
	return func(ctx context.Context, done func()) error {
		done()
		loop := b.AuthenticationLoop(s.auth.published(s.config.Authentication), s.auth.changed)
		return startup.Together(ctx, s.signalConfigMap(bootstrap.AuthenticationConfigMap, s.auth.changed), s.runLoop(loop))
	}
}

func (s *cluster) keepLegacyTokens(b *bootstrap.Bootstrap) startup.Run {
	return func(ctx context.Context, done func()) error {
		done()
		changed := bootstrap.NewSignal()
		return startup.Together(ctx, s.signalConfigMap(bootstrap.LegacyTokensConfigMap, changed),
			s.runLoop(b.LegacyTokensLoop(changed)))
	}
}

// signalConfigMap returns a function that sends changed when a ConfigMap in kube-system changes, until ctx ends.
func (s *cluster) signalConfigMap(name string, changed bootstrap.Signal) func(context.Context) error {
	return func(ctx context.Context) error {
		key := resource.Key{GroupResource: bootstrap.ConfigMaps, Namespace: metav1.NamespaceSystem, Name: name}
		return s.objects.Follow(ctx, key, follow.Options{Changed: changed.Send})
	}
}

// feed follows the objects of one resource: handle is called with each object that exists at the start, and then with
// each change. A nil object means that the object has been deleted.
type feed struct {
	resource schema.GroupResource
	handle   func(key string, object runtime.Object)
}

// followAll runs feeds until ctx ends. It calls done when the given number of feeds have passed on all objects that
// existed at the start; if there are fewer feeds, it never calls done.
func followAll(ctx context.Context, from *client.Client, feeds []feed, want int, done func()) error {
	var pending atomic.Int32
	pending.Store(int32(want))
	functions := make([]func(context.Context) error, 0, len(feeds))
	for _, f := range feeds {
		functions = append(functions, func(ctx context.Context) error {
			synced := func() {
				if pending.Add(-1) == 0 {
					done()
				}
			}
			return from.Follow(ctx, resource.Key{GroupResource: f.resource}, follow.Options{Objects: f.handle, Synced: synced})
		})
	}
	functions = append(functions, func(ctx context.Context) error {
		<-ctx.Done()
		return nil
	})
	return startup.Together(ctx, functions...)
}

// runCustom runs the controller of custom resources until ctx ends. If --runtime-config disables
// CustomResourceDefinitions, there are no custom resources; the check crd-informer-synced then never passes, as in
// kube-apiserver.
func (s *cluster) runCustom(ctx context.Context, done func()) error {
	done()
	if !s.custom.served() {
		s.apiServices.DefinitionsKnown()
		return nil
	}
	return s.custom.Run(ctx)
}

// awaitDefinitionControllers waits until the controller of CustomResourceDefinitions is running, if they are served.
func (s *cluster) awaitDefinitionControllers(ctx context.Context, done func()) error {
	if !s.custom.served() {
		return nil
	}
	return startup.Await(s.custom.Known())(ctx, done)
}

// completeCatalog closes s.complete when all objects that define resources and existed at the start are known.
func (s *Server) completeCatalog(ctx context.Context, _ func()) error {
	for _, known := range append(s.background.known, s.custom.definitionsKnown()) {
		select {
		case <-known:
		case <-ctx.Done():
			return nil
		}
	}
	close(s.complete)
	return nil
}

func (s *cluster) runAPIServices(ctx context.Context, _ func()) error { return s.apiServices.Run(ctx) }

// keepIdentity renews the identity Lease of this replica until ctx ends, and then deletes it.
func (s *cluster) keepIdentity(ctx context.Context, done func()) error {
	hostname, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("the host name identifies the replica: %w", err)
	}
	ip, port := s.peerAddress()
	identity := bootstrap.New(s.objects.Named("identity-lease"), s.clock, s.logger.WithName("identity")).
		Identity(hostname, net.JoinHostPort(ip, port))
	if s.storageVersions == nil {
		done() // storage versions are not recorded before the lease exists
		return identity.Run(ctx, func() {})
	}
	return identity.Run(ctx, done)
}

// electsLeaders reports whether the controller of coordinated leader election is enabled.
func electsLeaders() bool {
	return utilfeature.DefaultFeatureGate.Enabled(features.CoordinatedLeaderElection)
}

// electLeaders runs coordinated leader election for components with LeaseCandidates until ctx ends.
func (s *cluster) electLeaders(ctx context.Context, done func()) error {
	done()
	return leadership.Run(ctx, s.loopback.config(s.userAgent(), "leader-election"), s.config.Leadership)
}

// runControllers runs the enabled controllers of kube-controller-manager, as clients that call this server without a
// network.
func (s *cluster) runControllers(ctx context.Context, _ func()) error {
	if len(s.config.Controllers.Enabled) == 0 {
		return nil
	}
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("the host name identifies the holder of the controllers' lease: %w", err)
	}
	failed := make(failures, 1)
	options := controllers.Options{
		Enabled: s.config.Controllers.Enabled,
		Client:  s.loopback.config("quorate-controllers", "controllers"),
		Informers: func() clientgoinformers.SharedInformerFactory {
			return informers.All(s.informerOptions(s.client, failed))
		},
		AwaitDefinitions: s.custom.awaitDefinitions,
		Identity:         host + "_" + uuid.NewString(),
		Clock:            s.clock,
		Logger:           s.logger.WithName("controllers"),
	}
	return startup.Together(ctx, failed.await, func(ctx context.Context) error { return controllers.Run(ctx, options) })
}
