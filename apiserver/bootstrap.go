package apiserver

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"quorate.dev/apiserver/controllers/bootstrap"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/serving"
	"quorate.dev/apiserver/watchcache"
)

// hook is a part of the start that health tells of, under kube-apiserver's name for it.
type hook struct {
	name string
	done chan struct{}
}

// hooks are the parts of the start that make objects. The first are done when all they make is there; the others, which
// nothing waits for, when they have begun.
type hooks struct {
	namespaces, policy, priorityClasses, flowControl, authentication, identity, identityCleanup, legacyTokens hook
	serviceRepair, kubernetesService, serviceCIDR                                                             hook
}

func newHooks() *hooks {
	new := func(name string) hook { return hook{name: "poststarthook/" + name, done: make(chan struct{})} }
	return &hooks{
		namespaces:      new("start-system-namespaces-controller"),
		authentication:  new("start-cluster-authentication-info-controller"),
		identity:        new("start-kube-apiserver-identity-lease-controller"),
		identityCleanup: new("start-kube-apiserver-identity-lease-garbage-collector"),
		legacyTokens:    new("start-legacy-token-tracking-controller"),
		policy:          new("rbac/bootstrap-roles"),
		priorityClasses: new("scheduling/bootstrap-system-priority-classes"),
		flowControl:     new("priority-and-fairness-config-producer"),

		serviceRepair:     new("start-service-ip-repair-controllers"),
		kubernetesService: new("bootstrap-controller"),
		serviceCIDR:       new("start-kubernetes-service-cidr-controller"),
	}
}

// addTo adds the hooks to health in kube-apiserver's order.
func (h *hooks) addTo(health *serving.Health) {
	all := []hook{h.namespaces, h.authentication}
	if identifies() {
		all = append(all, h.identity, h.identityCleanup)
	}
	all = append(all, h.legacyTokens, h.serviceRepair, h.policy, h.priorityClasses, h.flowControl, h.kubernetesService, h.serviceCIDR)
	for _, hook := range all {
		health.Add(serving.AllEndpoints, serving.Check{Name: hook.name, Run: closedCheck(hook.done).check, StartUp: true})
	}
}

// identifies tells whether replicas announce themselves.
func identifies() bool { return utilfeature.DefaultFeatureGate.Enabled(features.APIServerIdentity) }

// bootstrap makes the objects every cluster has, as much as possible at once, and then keeps them in step.
func (s *Server) bootstrap(ctx context.Context, work *errgroup.Group) error {
	b := bootstrap.New(s.registry.Client(), s.clock, s.logger.WithName("bootstrap"))
	steps, making := errgroup.WithContext(ctx)
	step := func(h hook, make ...func(context.Context) error) {
		steps.Go(func() error {
			for _, run := range make {
				if err := b.Insist(making, run); err != nil {
					return err
				}
			}
			close(h.done)
			return nil
		})
	}
	afterNamespaces := func(ctx context.Context) error {
		select {
		case <-s.hooks.namespaces.done:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	step(s.hooks.namespaces, b.Namespaces)
	step(s.hooks.policy, b.ClusterPolicy, afterNamespaces, b.NamespacedPolicy)
	step(s.hooks.priorityClasses, b.PriorityClasses)
	step(s.hooks.flowControl, b.FlowControl)
	if err := steps.Wait(); err != nil {
		return fmt.Errorf("make the objects every cluster has: %w", err)
	}
	s.keepObjects(ctx, work, b)
	return nil
}

// keepObjects runs what keeps the server's own objects in step.
func (s *Server) keepObjects(ctx context.Context, work *errgroup.Group, b *bootstrap.Bootstrap) {
	run := func(loops ...bootstrap.Loop) {
		for _, loop := range loops {
			work.Go(func() error { loop.Run(ctx, s.clock, s.logger.WithName("bootstrap")); return nil })
		}
	}
	legacyTokens := bootstrap.NewSignal()
	s.followConfigMap(ctx, work, bootstrap.AuthenticationConfigMap, s.security.changed)
	s.followConfigMap(ctx, work, bootstrap.LegacyTokensConfigMap, legacyTokens)
	if identifies() {
		run(b.IdentityCleanupLoop())
	}
	run(b.NamespacesLoop(), b.FlowControlLoop(), b.LegacyTokensLoop(legacyTokens),
		b.AuthenticationLoop(s.security.published(s.config.Authentication), s.security.changed))
	if _, served := s.catalogs.publisher.Current().Find(bootstrap.FlowSchemas); served && s.config.Limits.PriorityAndFairness {
		schemas := bootstrap.NewSignal()
		s.followKind(ctx, work, bootstrap.FlowSchemas, schemas)
		s.followKind(ctx, work, bootstrap.PriorityLevels, schemas)
		run(b.FlowSchemaStatusLoop(schemas))
	}
	for _, started := range []hook{s.hooks.authentication, s.hooks.identityCleanup, s.hooks.legacyTokens} {
		close(started.done)
	}
}

// followConfigMap signals when a ConfigMap of kube-system changes.
func (s *Server) followConfigMap(ctx context.Context, work *errgroup.Group, name string, changed bootstrap.Signal) {
	work.Go(func() error {
		return ended(ctx, s.registry.Client().FollowObject(ctx,
			resource.Key{GroupResource: bootstrap.ConfigMaps, Namespace: metav1.NamespaceSystem, Name: name},
			changed.Send))
	})
}

// followKind signals when an object of a resource changes.
func (s *Server) followKind(ctx context.Context, work *errgroup.Group, name schema.GroupResource, changed bootstrap.Signal) {
	work.Go(func() error {
		return ended(ctx, s.registry.Client().FollowEntries(ctx, name, func(_, _ *watchcache.Entry) { changed.Send() }, nil))
	})
}

// announce keeps the lease of this replica until ctx ends.
func (s *Server) announce(ctx context.Context) error {
	if !identifies() {
		return nil
	}
	select {
	case <-s.bootstrapped:
	case <-ctx.Done():
		return nil
	}
	hostname, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("a replica's identity is made of its host name: %w", err)
	}
	address := net.JoinHostPort(s.advertised().String(), strconv.Itoa(s.config.Serving.Port))
	close(s.hooks.identity.done)
	return bootstrap.New(s.registry.Client(), s.clock, s.logger.WithName("identity")).Identity(hostname, address).Run(ctx)
}
