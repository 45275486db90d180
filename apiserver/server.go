// Package apiserver composes one API server replica. startup.go has the list of all components that are started, with
// their order; Server.Run stops them in order; configureProcess has the settings that are global to the process.
//
// The package has few tests, because a composed replica is a process: test/differential, test/compatibility,
// test/failover and others start it.
package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/go-logr/logr"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/admission"
	"quorate.dev/apiserver/audit"
	"quorate.dev/apiserver/builtin"
	"quorate.dev/apiserver/builtin/enablement"
	"quorate.dev/apiserver/config"
	"quorate.dev/apiserver/controllers/storageversions"
	"quorate.dev/apiserver/egress"
	"quorate.dev/apiserver/filters"
	"quorate.dev/apiserver/handlers"
	"quorate.dev/apiserver/lazy"
	"quorate.dev/apiserver/metrics"
	"quorate.dev/apiserver/openapi"
	"quorate.dev/apiserver/preflight"
	"quorate.dev/apiserver/registry"
	"quorate.dev/apiserver/registry/client"
	"quorate.dev/apiserver/request"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/serving"
	"quorate.dev/apiserver/startup"
	"quorate.dev/apiserver/stores"
	"quorate.dev/panics"
)

// Server is one API server replica.
type Server struct {
	environment
	mode mode
	// stores are the etcds in which the registry stores objects.
	stores   *stores.Stores
	registry *registry.Registry
	// objects is the access of this server's own code to the registry.
	objects *client.Client
	// storageVersions is nil if storage versions are not recorded.
	storageVersions *storageversions.Recorder
	loopback        *loopback
	clients
	auth *auth
	// auditor is nil if nothing is audited.
	auditor    *audit.Auditor
	catalogs   *catalogs
	background background
	schemas    *openapi.Handler
	custom     customResources
	listener
	hooks *startup.Hooks
}

// environment has what the parts of a replica have in common.
type environment struct {
	config    *config.Config
	logger    logr.Logger
	verbosity Log
	// tracing is nil if tracing is disabled.
	tracing *traces
	clock   clock.WithTicker
	started time.Time
	metrics *metrics.Registry
	panics  *panics.Reporter
	memory  memoryLimit
	egress  egress.Dialers
	// apis are the built-in APIs that are served.
	apis enablement.APIs
	// catalog has the served resources. catalogs replaces its content when custom resources change.
	catalog *resource.CatalogHolder
	// agent is the first part of the user agent.
	agent string
	// idle drops the schemas, validators and converters of CustomResourceDefinitions that have not been used for
	// idleTimeout.
	idle *lazy.Set
}

// listener has the parts that receive requests and end them.
type listener struct {
	serving  *serving.Server
	drain    *request.Drain
	health   *serving.Health
	requests *filters.Metrics
	// complete is closed when the catalog has all resources that existed at the start, and all APIServices that existed
	// at the start are known. Until then, requests for unknown groups and paths get 503, as in kube-apiserver until the
	// signal MuxAndDiscoveryComplete.
	complete chan struct{}
	// stopped is closed when no more requests are served.
	stopped chan struct{}
}

// New composes a replica, and starts its embedded etcd member if it has one. The caller must call Run. verbosity is the
// log of logger.
func New(ctx context.Context, c *config.Config, logger logr.Logger, verbosity Log) (*Server, error) {
	s, err := load(ctx, c, logger, verbosity)
	if err != nil {
		return nil, err
	}
	if err := s.openStores(ctx, nil); err != nil {
		return nil, err
	}
	if err = s.compose(ctx, &admission.Chain{}); err == nil {
		err = s.composeServing()
	}
	if err != nil {
		return nil, errors.Join(err, s.stores.Close())
	}
	return s, nil
}

// openStores opens the etcds of the flags, or uses client instead of them.
func (s *Server) openStores(ctx context.Context, client *clientv3.Client) (err error) {
	s.stores, err = stores.Open(ctx, stores.Options{
		Config: s.config, Client: client, Catalog: s.catalog, Egress: s.egress, Dial: s.tracing.dialOptions(),
		Clock: s.clock, Logger: s.logger, Metrics: s.metrics,
	})
	return err
}

// load returns a replica with the components that do not need etcd.
func load(ctx context.Context, c *config.Config, logger logr.Logger, verbosity Log) (*Server, error) {
	e, err := loadEnvironment(ctx, c, logger, verbosity)
	if err != nil {
		return nil, err
	}
	s := &Server{
		environment: e, loopback: newLoopback(e.tracing.wrapper()),
		listener: listener{
			drain: &request.Drain{}, health: serving.NewHealth(c.Serving.LivezGracePeriod, e.clock, logger),
			complete: make(chan struct{}), stopped: make(chan struct{}),
		},
	}
	s.mode, err = s.chooseMode()
	return s, err
}

// loadEnvironment loads the APIs and files that flags name.
func loadEnvironment(
	ctx context.Context, c *config.Config, logger logr.Logger, verbosity Log,
) (e environment, err error) {
	registry := metrics.NewRegistry(Version(c))
	e = environment{
		config: c, logger: logger, verbosity: verbosity, clock: clock.RealClock{}, started: time.Now(), metrics: registry,
		panics: panics.NewReporter(registry, clock.RealClock{}, logger.WithName("panics")),
		memory: newMemoryLimit(registry, logger), agent: "kube-apiserver", idle: &lazy.Set{},
		catalog: &resource.CatalogHolder{},
	}
	if c.Extension.Enabled() {
		e.agent = "quorate-extension"
	}
	e.catalog.Publish(resource.NewCatalog())
	builtin.MeasureFeatures(registry)
	builtin.MeasureUpstream(registry)
	gates := utilfeature.DefaultFeatureGate
	if e.apis, err = builtin.Enable(c.API.RuntimeConfig, preflight.Emulation(c, gates)); err != nil {
		return e, err
	}
	err = errors.Join(preflight.Leadership(gates, e.apis), preflight.StorageVersions(gates, c, e.apis))
	if err != nil {
		return e, err
	}
	if e.egress, err = egress.Load(c.API.EgressSelectorFile); err != nil {
		return e, err
	}
	e.tracing, err = loadTracing(ctx, c.Tracing.ConfigFile, e.egress)
	return e, err
}

// chooseMode returns the mode of the flags.
func (s *Server) chooseMode() (mode, error) {
	if s.config.Extension.Enabled() {
		return &extension{Server: s}, nil
	}
	configuration, err := loadAuthConfiguration(s.config)
	return &cluster{Server: s, configuration: configuration}, err
}

// compose creates the components from storage to the request path, from the lowest layer to the highest, and adds the
// plugins of admission to chain. The listeners follow.
func (s *Server) compose(ctx context.Context, chain *admission.Chain) (err error) {
	if s.auditor, err = audit.New(s.config.Audit, audit.Options{
		Dial: s.egress.ControlPlane, UserAgent: s.userAgent(), MemoryLimit: s.memory.bytes,
	}); err != nil {
		return err
	}
	s.composeRegistry(chain)
	if s.clients, err = s.mode.composeClients(); err != nil {
		return err
	}
	if s.auth, err = s.mode.composeAuth(ctx); err != nil {
		return err
	}
	builtIn, err := s.mode.definitions()
	if err != nil {
		return err
	}
	if s.storageVersions != nil {
		s.storageVersions.SetResources(storageversions.Resources(builtIn, builtin.DecodableVersions()))
	}
	s.catalogs = newCatalogs(builtIn, s.catalog, s.registry, s.config.Extension, s.metrics)
	s.requests = filters.NewMetrics(s.metrics, s.catalog)
	if s.background, err = s.mode.composeBackground(); err != nil {
		return err
	}
	if err := s.composeResources(chain); err != nil {
		return err
	}
	handler, err := s.composeHandler()
	if err != nil {
		return err
	}
	s.loopback.serve(handler)
	if s.hooks, err = startup.New(s.mode.startUp(), s.panics); err != nil {
		return err
	}
	s.addChecks()
	return nil
}

func (s *Server) composeServing() (err error) {
	settings := s.config.Serving
	settings.HTTP2MaxStreams = s.config.HTTP2Streams()
	s.serving, err = serving.New(serving.Options{
		Config: settings, Handler: s.loopback.handler, Drain: s.drain, Health: s.health, Reload: s.auth.reload,
		ClientAuthorities: s.auth.authorities, Hosts: s.background.hosts,
		Clock: s.clock, Logger: s.logger.WithName("serving"), Registerer: s.metrics,
	})
	return err
}

func (s *Server) composeRegistry(chain *admission.Chain) {
	standard := s.stores.Default.Storage
	s.registry = registry.New(registry.Options{
		Store: standard.Store, Caches: standard.Caches, Quota: standard.Quota,
		Overrides: s.stores.Overrides(), Uncached: s.stores.Uncached(), Catalog: s.catalog, Admission: chain,
		NoGarbageCollector: !s.config.API.GarbageCollector, Clock: s.clock, Logger: s.logger.WithName("registry"),
		Metrics:          registry.NewMetrics(s.metrics),
		OwnWrites:        newOwnWrites(s.metrics, s.clock),
		DeleteUnreadable: stores.DeletesUnreadable(),
	})
	options := client.Options{
		Registry: s.registry, Auditor: s.auditor, Clock: s.clock, Logger: s.logger.WithName("registry"),
	}
	if preflight.RecordsStorageVersions(utilfeature.DefaultFeatureGate, s.config) {
		s.storageVersions = &storageversions.Recorder{}
		options.Permit = s.storageVersions.PermitOwn
	}
	s.objects = client.New(options)
}

// composeResources composes OpenAPI, admission and the controller of custom resources.
func (s *Server) composeResources(chain *admission.Chain) (err error) {
	s.schemas, err = openapi.New(openapi.Options{
		Catalogs: s.catalog, Remote: s.background.documents, Forward: s.background.forward,
		NoEnumerations: !utilfeature.DefaultFeatureGate.Enabled(features.OpenAPIEnums),
		Idle:           s.idle, Clock: s.clock, Logger: s.logger.WithName("openapi"),
	})
	if err != nil {
		return err
	}
	if err = s.mode.composeAdmission(chain); err != nil {
		return err
	}
	s.custom, err = s.composeCustom()
	return err
}

// composeHandler returns the handler of requests: filters, router and handlers.
func (s *Server) composeHandler() (http.Handler, error) {
	resources := handlers.New(handlers.Options{
		Registry: s.registry, Authorizer: s.auth.authorizer, Clock: s.clock, Metrics: handlers.NewMetrics(s.metrics),
		MinWatchTimeout: s.config.Serving.MinRequestTimeout, DeleteWorkers: s.config.Limits.DeleteCollectionWorkers,
		MemoryLimit: s.memory.bytes,
	})
	routes, err := s.routes(resources)
	if err != nil {
		return nil, err
	}
	origins, err := filters.CompileOrigins(s.config.Serving.CORSAllowedOrigins)
	if err != nil {
		return nil, fmt.Errorf("--cors-allowed-origins: %w", err)
	}
	options := filters.Options{
		Clock: s.clock, Logger: s.logger, Metrics: s.requests,
		Catalog: s.catalog, Drain: s.drain, Delegate: s.background.delegate, Auditor: s.auditor,
		Tracing:       s.tracing.provider(),
		Authenticator: s.auth.authenticator, FrontProxy: s.auth.proxy, Authorizer: s.auth.authorizer,
		ConstrainedImpersonation:    utilfeature.DefaultFeatureGate.Enabled(features.ConstrainedImpersonation),
		RequestTimeout:              s.config.Serving.RequestTimeout,
		Fairness:                    s.background.flows,
		MaxRequestsInFlight:         s.config.Limits.MaxRequestsInFlight,
		MaxMutatingRequestsInFlight: s.config.Limits.MaxMutatingRequestsInFlight,
		GoawayChance:                s.config.Serving.GoawayChance,
		StrictTransportSecurity:     s.config.Serving.StrictTransportSecurity,
		CORSAllowedOrigins:          origins,
	}
	if s.storageVersions != nil {
		options.Permit = s.storageVersions.PermitRequest
	}
	s.memory.bound(&options)
	return filters.Chain(options, s.background.peers.Handler(routes)), nil
}

// releaseTimeout bounds the time in which hooks with leases release them. Without a quorum they cannot release them.
const releaseTimeout = 3 * time.Second

// Run serves until ctx ends or a component that the replica depends on fails. Then it stops the replica in this order:
//   - /readyz fails. Within --shutdown-delay-duration, this replica leaves the kubernetes Service and releases its
//     leases. Without its embedded member it can do neither, and does not wait.
//   - New requests are refused, running requests finish, and watches end.
//   - Background work stops; then buffered audit events are delivered.
//   - The embedded member transfers its leadership and stops.
func (s *Server) Run(ctx context.Context) error {
	background, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	if s.auditor != nil {
		if err := s.auditor.Run(); err != nil {
			return errors.Join(err, s.stores.Close())
		}
	}
	work, background := errgroup.WithContext(background)
	leasing, stopLeasing := context.WithCancel(background)
	defer stopLeasing()
	work.Go(s.serving.Serve)
	memberFailed := make(chan struct{})
	work.Go(func() error { return s.stores.Watch(background, memberFailed) })
	s.hooks.Start(background, leasing, work)
	// systemd waits for the notification if the unit has Type=notify. Like kube-apiserver, the server notifies when it
	// listens.
	if _, err := daemon.SdNotify(true, daemon.SdNotifyReady); err != nil {
		s.logger.Error(err, "Failed to notify systemd")
	}

	select {
	case <-ctx.Done():
		s.logger.Info("Stopping")
	case <-background.Done():
	}
	stopping, stopped := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout(s.config.Serving))
	defer stopped()
	err := s.serving.Shutdown(stopping, memberFailed, func(context.Context) {
		stopLeasing()
		s.hooks.AwaitEnd(hookKubernetesService, memberFailed)
		select {
		case <-s.hooks.Released():
		case <-memberFailed:
		case <-s.clock.After(releaseTimeout):
		}
	})
	close(s.stopped)
	cancel()
	return errors.Join(work.Wait(), err, s.closeLast())
}

// closeLast closes the components that requests and background work use until their end. A slow audit webhook does not
// delay the stop of the embedded member.
func (s *Server) closeLast() error {
	delivered := make(chan struct{})
	go func() {
		defer close(delivered)
		if s.auditor != nil {
			s.auditor.Shutdown()
		}
	}()
	err := s.stores.Close()
	<-delivered
	if err := s.tracing.close(); err != nil {
		s.logger.Error(err, "The last spans were not exported")
	}
	return err
}

// stopTimeout returns the maximum duration of the graceful shutdown: the delay, one request, the grace period of
// watches, and a margin.
func stopTimeout(c config.Serving) time.Duration {
	return c.ShutdownDelay + c.RequestTimeout + c.ShutdownWatchTerminationGrace + 10*time.Second
}
