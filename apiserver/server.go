// Package apiserver puts one API server replica together: what is started, in which order, and what is stopped, in
// which order, is written here and nowhere else.
package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/admission"
	"quorate.dev/apiserver/builtin"
	"quorate.dev/apiserver/builtin/enablement"
	"quorate.dev/apiserver/config"
	"quorate.dev/apiserver/controllers/autoregister"
	"quorate.dev/apiserver/crd"
	"quorate.dev/apiserver/filters"
	"quorate.dev/apiserver/handlers"
	"quorate.dev/apiserver/kubelet"
	"quorate.dev/apiserver/metrics"
	"quorate.dev/apiserver/registry"
	"quorate.dev/apiserver/request"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/serving"
	"quorate.dev/apiserver/storage"
	"quorate.dev/apiserver/watchcache"
)

// Server is one replica.
type Server struct {
	config *config.Config
	logger logr.Logger
	// verbosity is the logger's.
	verbosity serving.Verbosity
	clock     clock.WithTicker
	started   time.Time
	metrics   *metrics.Registry

	// apis are the built-in APIs that are served.
	apis     enablement.APIs
	backend  *backend
	store    *storage.Store
	quota    *storage.SoftQuota
	caches   *watchcache.Caches
	registry *registry.Registry
	catalogs *catalogs
	security *security
	services *serviceNetwork
	custom   *crd.Controller
	// complete is closed when all resources that existed at the start are in the catalog. Until then, unknown groups and
	// paths are answered with 503. APIServices of other servers belong to it as soon as they are served.
	complete   closedCheck
	unenforced *unenforced
	// apiServices keeps the APIService objects of what is served here.
	apiServices *autoregister.Controller
	// client and informers are what upstream's parts of this server see of it.
	client    kubernetes.Interface
	informers informers.SharedInformerFactory
	drain     *request.Drain
	health    *serving.Health
	handler   http.Handler
	serving   *serving.Server
	// stopped is closed when no more requests are served.
	stopped chan struct{}
	// policyRead is reached when all roles and bindings that were there at the start are in force.
	policyRead pendingCheck
	// bootstrapped is closed when the objects every cluster has are there.
	bootstrapped chan struct{}
	hooks        *hooks
}

// New puts a replica together and starts its etcd member, if it has one. Run must follow. verbosity is that of the logger.
func New(ctx context.Context, c *config.Config, logger logr.Logger, verbosity serving.Verbosity) (*Server, error) {
	s := &Server{
		config: c, logger: logger, verbosity: verbosity, clock: clock.RealClock{}, started: time.Now(), drain: &request.Drain{},
		metrics: metrics.NewRegistry(Version(c.API.Version)), bootstrapped: make(chan struct{}), stopped: make(chan struct{}),
		hooks: newHooks(),
	}
	s.policyRead.missing.Store(rbacResources)
	s.health = serving.NewHealth(c.Serving.LivezGracePeriod, s.clock, logger)
	if err := s.configureBuiltin(); err != nil {
		return nil, err
	}
	var err error
	if s.backend, err = openBackend(ctx, c, logger); err != nil {
		return nil, err
	}
	if err := s.compose(); err != nil {
		return nil, errors.Join(err, s.closeBackend())
	}
	return s, nil
}

// compose puts together what lies between storage and the network, from the bottom up.
func (s *Server) compose() (err error) {
	publisher := &resource.CatalogHolder{}
	publisher.Publish(resource.NewCatalog())
	chain := &admission.Chain{}
	s.store = storage.New(s.backend.client, s.config.Etcd.Prefix)
	s.caches = watchcache.New(s.store, watchcache.Options{Clock: s.clock, Logger: s.logger.WithName("watchcache"), Registerer: s.metrics})
	s.store.Measure(s.metrics, s.clock, s.caches.ResourceOf)
	s.quota = &storage.SoftQuota{Measure: s.backend.space, Percent: int64(s.config.SoftQuota())}
	s.quota.Count(s.metrics)
	s.registry = registry.New(registry.Options{
		Store: s.store, Caches: s.caches, Catalog: publisher, Admission: chain, Quota: s.quota, Clock: s.clock,
		Logger: s.logger.WithName("registry"),
	})
	if s.client, s.informers, err = s.composeInformers(publisher); err != nil {
		return err
	}
	if s.security, err = composeSecurity(s.config, s.registry, s.informers, s.clock, s.metrics); err != nil {
		return err
	}
	s.registry.AuthorizeWith(s.security.authorizer)
	kubelets, err := s.composeKubelets()
	if err != nil {
		return err
	}
	s.catalogs = &catalogs{builtin: s.definitions(publisher, kubelets), publisher: publisher, registry: s.registry}
	s.catalogs.publishCustom(nil)
	if s.services, err = s.composeServices(); err != nil {
		return err
	}
	s.unenforced = newUnenforced(s.metrics, s.logger.WithName("admission"))
	if err = s.composeAdmission(chain); err != nil {
		return err
	}
	if s.custom, err = s.composeCustom(); err != nil {
		return err
	}
	s.complete = s.definitionsKnown()
	s.apiServices = s.composeAPIServices()
	if s.handler, err = s.composeHandler(publisher); err != nil {
		return err
	}
	s.addChecks()
	s.serving, err = serving.New(serving.Options{
		Config: s.config.Serving, Handler: s.handler, Drain: s.drain, Health: s.health, Reload: s.security.reload,
		ClientAuthorities: s.security.authorities, Hosts: s.hosts(),
		Clock: s.clock, Logger: s.logger.WithName("serving"), Registerer: s.metrics,
	})
	return err
}

// configureBuiltin applies what the flags say about built-in kinds: features, and which APIs are served.
func (s *Server) configureBuiltin() (err error) {
	if err := builtin.Configure(s.config.Admission.AllowPrivileged, s.config.API.FeatureGates); err != nil {
		return err
	}
	builtin.MeasureFeatures(s.metrics)
	builtin.MeasureUpstream(s.metrics)
	if len(s.config.Authentication.RequestHeaderUID) > 0 && !utilfeature.DefaultFeatureGate.Enabled(features.RemoteRequestHeaderUID) {
		return fmt.Errorf("--requestheader-uid-headers requires the %q feature to be enabled", features.RemoteRequestHeaderUID)
	}
	s.apis, err = builtin.Enable(s.config.API.RuntimeConfig)
	return err
}

// definitions are the built-in kinds.
func (s *Server) definitions(publisher *resource.CatalogHolder, kubelets *kubelet.Kubelets) []*resource.Definition {
	options := builtin.Options{
		APIs: s.apis, Objects: s.registry, Catalog: publisher, Clock: s.clock, EventTTL: s.config.Etcd.EventTTL,
		Audiences: s.config.Authentication.Audiences(), Authorizer: s.security.authorizer, Rules: s.security.authorizer,
		ServiceAccountToken: s.security.tokens.Request(), Kubelets: kubelets, Etcd: s.backend.members(), ServiceFamily: s.serviceFamily(),
	}
	if tokens := s.security.authenticator.Tokens(); tokens != nil {
		options.Tokens = tokens
	}
	return builtin.Definitions(options)
}

// settleTime is how long after this replica serves a custom resource its definition is called established: the others,
// which hear of it at the same moment, serve it by then.
const settleTime = 100 * time.Millisecond

func (s *Server) composeCustom() (*crd.Controller, error) {
	return crd.NewController(crd.ControllerOptions{
		Objects: s.registry, Follow: s.followDefinitions, Publish: s.catalogs.publishCustom, BuiltIn: s.catalogs.isBuiltIn,
		EstablishDelay: settleTime, Clock: s.clock, Logger: s.logger.WithName("crd"),
	})
}

// composeHandler puts the way of a request together: filters, router, handlers.
func (s *Server) composeHandler(publisher *resource.CatalogHolder) (http.Handler, error) {
	resources := handlers.New(handlers.Options{
		Registry: s.registry, Clock: s.clock, Metrics: handlers.NewMetrics(s.metrics), MinWatchTimeout: s.config.Serving.MinRequestTimeout,
		DeleteWorkers: s.config.Limits.DeleteCollectionWorkers,
	})
	routes, err := s.routes(publisher, resources)
	if err != nil {
		return nil, err
	}
	origins, err := filters.CompileOrigins(s.config.Serving.CORSAllowedOrigins)
	if err != nil {
		return nil, fmt.Errorf("--cors-allowed-origins: %w", err)
	}
	return filters.Chain(filters.Options{
		Clock: s.clock, Logger: s.logger, Metrics: filters.NewMetrics(s.metrics, publisher),
		Catalog: publisher, Drain: s.drain,
		Authenticator: s.security.authenticator, FrontProxy: s.security.frontProxy, Authorizer: s.security.authorizer,
		ConstrainedImpersonation:    utilfeature.DefaultFeatureGate.Enabled(features.ConstrainedImpersonation),
		RequestTimeout:              s.config.Serving.RequestTimeout,
		MaxRequestsInFlight:         s.config.Limits.MaxRequestsInFlight,
		MaxMutatingRequestsInFlight: s.config.Limits.MaxMutatingRequestsInFlight,
		GoawayChance:                s.config.Serving.GoawayChance,
		StrictTransportSecurity:     s.config.Serving.StrictTransportSecurity,
		CORSAllowedOrigins:          origins,
	}, routes), nil
}

// clientsPatience is how long the controllers get to give back their lease.
const clientsPatience = 3 * time.Second

// Run serves until ctx ends or something it depends on fails. Then it stops in order: /readyz fails; during
// --shutdown-delay-duration this replica leaves the kubernetes Service, and the controllers and the replica's identity
// give back their leases; no new requests, those at hand finished, watches ended, background work stopped, leadership
// handed over, the member stopped.
func (s *Server) Run(ctx context.Context) error {
	background, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	work, background := errgroup.WithContext(background)
	work.Go(s.serving.Serve)
	work.Go(func() error { return s.watchMember(background) })
	work.Go(func() error { return ended(background, s.start(background, work)) })
	clients, stopClients := context.WithCancel(background)
	defer stopClients()
	work.Go(func() error { return s.services.serveKubernetes(clients) })
	clientsEnded := make(chan struct{})
	work.Go(func() error {
		defer close(clientsEnded)
		return ended(clients, s.runClients(clients))
	})

	select {
	case <-ctx.Done():
		s.logger.Info("Stopping")
	case <-background.Done():
	}
	stopping, stopped := context.WithTimeout(context.WithoutCancel(ctx), s.stopTimeout())
	defer stopped()
	err := s.serving.Shutdown(stopping, func(context.Context) {
		stopClients()
		<-s.services.left
		select {
		case <-clientsEnded:
		case <-s.clock.After(clientsPatience): // without a quorum they cannot give back anything
		}
	})
	close(s.stopped)
	cancel()
	return errors.Join(work.Wait(), err, s.closeBackend())
}

// start brings the replica to life, each step when what it needs is there. Health tells how far it has come.
func (s *Server) start(ctx context.Context, work *errgroup.Group) error {
	if err := s.backend.awaitReady(ctx); err != nil {
		return err
	}
	s.checkFeatures(ctx, work)
	work.Go(func() error { return ended(ctx, s.caches.Run(ctx)) })
	s.informers.StartWithContext(ctx)
	work.Go(func() error {
		s.store.RunCompaction(ctx, s.config.Etcd.CompactionInterval, s.quota, s.clock, s.logger.WithName("compaction"))
		return nil
	})
	work.Go(func() error {
		s.backend.pollSpace(ctx, s.store, s.config.SpacePollInterval(), s.clock)
		return nil
	})
	work.Go(func() error {
		s.store.FollowCompaction(ctx, s.clock, s.logger.WithName("compaction"), s.caches.Compacted)
		return nil
	})
	for _, feed := range feedPolicy(ctx, s.registry, s.catalogs.publisher.Current(), s.security.policy, s.policyRead.Done) {
		work.Go(func() error { return ended(ctx, feed()) })
	}
	s.followUnenforced(ctx, work)
	work.Go(func() error { return ended(ctx, s.runCustom(ctx)) })
	work.Go(func() error { return ended(ctx, s.apiServices.Run(ctx)) })
	work.Go(func() error { return ended(ctx, s.services.run(ctx)) })
	if err := s.bootstrap(ctx, work); err != nil {
		return err
	}
	close(s.bootstrapped)
	return nil
}

// featuresPatience is how long the watch cache waits for the version of etcd. Without it, clients that resume their
// watches are sent back to a list.
const featuresPatience = 2 * time.Second

// checkFeatures finds out what etcd supports, and waits a while for an answer.
func (s *Server) checkFeatures(ctx context.Context, work *errgroup.Group) {
	work.Go(func() error {
		s.store.CheckFeatures(ctx, s.clock, s.logger.WithName("storage"))
		return nil
	})
	select {
	case <-s.store.FeaturesKnown():
	case <-s.clock.After(featuresPatience):
	case <-ctx.Done():
	}
}

// watchMember ends the replica when its member ends by itself.
func (s *Server) watchMember(ctx context.Context) error {
	select {
	case err := <-s.backend.failed():
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("the etcd member failed: %w", err)
		}
		return nil
	case <-ctx.Done():
		return nil
	}
}

// ended is nil for an error that only says that the server is stopping.
func ended(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// stopTimeout bounds the orderly stop: the delay, a whole request, the watches' grace, and a little more.
func (s *Server) stopTimeout() time.Duration {
	c := s.config.Serving
	return c.ShutdownDelay + c.RequestTimeout + c.ShutdownWatchTerminationGrace + 10*time.Second
}

func (s *Server) closeBackend() error {
	const patience = 10 * time.Second
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return s.backend.close(ctx)
}
