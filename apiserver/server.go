// Package apiserver composes one API server replica. What starts in which order is the list in startup.go; what stops
// in which order is Server.Run; what is global to the process is configureProcess.
//
// Few of its tests are here: a composed replica is a process, and test/differential, test/compatibility, test/failover and
// others start it.
package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/admission"
	"quorate.dev/apiserver/audit"
	"quorate.dev/apiserver/builtin"
	"quorate.dev/apiserver/builtin/enablement"
	"quorate.dev/apiserver/config"
	"quorate.dev/apiserver/controllers/autoregister"
	"quorate.dev/apiserver/crd"
	"quorate.dev/apiserver/egress"
	"quorate.dev/apiserver/encryption"
	"quorate.dev/apiserver/filters"
	"quorate.dev/apiserver/flowcontrol"
	"quorate.dev/apiserver/handlers"
	"quorate.dev/apiserver/host"
	"quorate.dev/apiserver/lazy"
	"quorate.dev/apiserver/memory"
	"quorate.dev/apiserver/metrics"
	"quorate.dev/apiserver/openapi"
	"quorate.dev/apiserver/peers"
	"quorate.dev/apiserver/preflight"
	"quorate.dev/apiserver/registry"
	"quorate.dev/apiserver/request"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/serving"
)

// Server is one replica.
type Server struct {
	config    *config.Config
	logger    logr.Logger
	verbosity Log
	tracing   *traces // nil: off
	clock     clock.WithTicker
	started   time.Time
	metrics   *metrics.Registry
	apis      enablement.APIs // the built-in APIs that are served
	mode      mode
	host      *host.Cluster // of an extension server
	lookup    *host.Lookup  // nil: nothing is looked up in the host

	authConfiguration authConfiguration // of a cluster
	egress            egress.Dialers

	objectStore
	requestPath
	background
}

// objectStore is what reads and writes objects, from the bottom up.
type objectStore struct {
	encryption *encryption.Configuration // nil: no value is encrypted
	location                             // of all resources without an override
	others     []*location               // of --etcd-servers-overrides
	overrides  map[schema.GroupResource]*location
	registry   *registry.Registry
}

// requestPath is what requests pass through or are decided by.
type requestPath struct {
	serving  *serving.Server
	drain    *request.Drain
	health   *serving.Health
	handler  http.Handler
	composed chan struct{} // closed when handler is set
	requests *filters.Metrics
	auth     *auth
	auditor  *audit.Auditor // nil: nothing is audited
	catalogs *catalogs
	schemas  *openapi.Handler
	// complete is closed when the catalog has all resources, and all APIServices are known, that existed at the start.
	// Until then unknown groups and paths are answered with 503, as kube-apiserver does until MuxAndDiscoveryComplete.
	complete chan struct{}
	// stopped is closed when no more requests are served.
	stopped chan struct{}
}

// background is what runs beside requests.
type background struct {
	hooks *hooks
	// pressure observes the heap, whose limit is memoryLimit; nil: there is no limit.
	pressure    *memory.Pressure
	memoryLimit int64
	// idle drops what custom resources need while they are used only.
	idle *lazy.Set
	// client and informers are how upstream's code in this process, such as admission plugins, reads and writes objects.
	client     kubernetes.Interface
	dynamic    dynamic.Interface
	resolver   webhook.ServiceResolver
	informers  informers.SharedInformerFactory
	parameters informers.SharedInformerFactory // of policies: informers, and all other resources
	services   *services
	custom     *crd.Controller
	// definitionsSeen is the progress of following CustomResourceDefinitions.
	definitionsSeen registry.Progress
	apiServices     *autoregister.Controller
	aggregation     aggregation
	flows           *flowcontrol.Controller // nil: the limits of requests in flight apply
	publisher       *peers.Publisher        // nil: the feature gate of peers is off
	peers           *peers.Peers            // nil: no requests are passed on
}

// New composes a replica and starts its embedded etcd member, if it has one. The caller must call Run next. verbosity
// is the logger's.
func New(ctx context.Context, c *config.Config, logger logr.Logger, verbosity Log) (*Server, error) {
	s := &Server{
		config: c, logger: logger, verbosity: verbosity, clock: clock.RealClock{}, started: time.Now(),
		metrics: metrics.NewRegistry(Version(c)),
		requestPath: requestPath{
			drain: &request.Drain{}, composed: make(chan struct{}), complete: make(chan struct{}), stopped: make(chan struct{}),
		},
		background: background{idle: &lazy.Set{}},
	}
	s.composeMemory()
	s.health = serving.NewHealth(c.Serving.LivezGracePeriod, s.clock, logger)
	builtin.MeasureFeatures(s.metrics)
	builtin.MeasureUpstream(s.metrics)
	var err error
	if s.apis, err = builtin.Enable(c.API.RuntimeConfig, preflight.Emulation(c)); err != nil {
		return nil, err
	}
	if err = preflight.Leadership(utilfeature.DefaultFeatureGate, s.apis); err != nil {
		return nil, err
	}
	if s.egress, err = egress.Load(c.API.EgressSelectorFile); err != nil {
		return nil, err
	}
	if !c.Extension.Enabled() {
		if s.authConfiguration, err = loadAuthConfiguration(c); err != nil {
			return nil, err
		}
	}
	if err = s.loadTracing(ctx); err != nil {
		return nil, err
	}
	if s.encryption, err = s.loadEncryption(ctx); err != nil {
		return nil, err
	}
	dial := s.dialEtcd()
	if s.backend, err = openBackend(ctx, c, s.egress, logger, dial); err != nil {
		s.closeEncryption()
		return nil, err
	}
	s.measureMember()
	if s.others, s.overrides, err = openOverrides(c, s.egress, dial); err != nil {
		s.closeEncryption()
		return nil, errors.Join(err, s.closeBackend())
	}
	if err := s.compose(ctx); err != nil {
		return nil, errors.Join(err, s.closeBackend())
	}
	return s, nil
}

// compose creates everything between storage and the network, from the bottom up.
func (s *Server) compose(ctx context.Context) (err error) {
	holder := &resource.CatalogHolder{}
	holder.Publish(resource.NewCatalog())
	chain := &admission.Chain{}
	s.composeStore(holder, chain)
	s.mode = s.cluster()
	if s.config.Extension.Enabled() {
		s.mode = s.extension()
	}
	if err = s.mode.clients(holder); err != nil {
		return err
	}
	if s.auth, err = s.mode.auth(ctx); err != nil {
		return err
	}
	if s.auditor, err = audit.New(s.config.Audit, audit.Options{Dial: s.egress.ControlPlane, UserAgent: s.userAgent()}); err != nil {
		return err
	}
	s.registry.AuditWith(s.auditor)
	s.registry.AuthorizeWith(s.auth.authorizer)
	if err := s.composeCatalogs(holder); err != nil {
		return err
	}
	s.requests = filters.NewMetrics(s.metrics, holder)
	if err := s.mode.background(); err != nil {
		return err
	}
	if err := s.composeResources(chain); err != nil {
		return err
	}
	if s.handler, err = s.composeHandler(holder); err != nil {
		return err
	}
	close(s.composed)
	s.hooks = newHooks(s.mode.startUp())
	s.addChecks()
	return s.composeServing()
}

func (s *Server) composeServing() (err error) {
	settings := s.config.Serving
	settings.HTTP2MaxStreams = s.config.HTTP2Streams()
	s.serving, err = serving.New(serving.Options{
		Config: settings, Handler: s.handler, Drain: s.drain, Health: s.health, Reload: s.auth.reload,
		ClientAuthorities: s.auth.authorities, Hosts: s.mode.hosts(),
		Clock: s.clock, Logger: s.logger.WithName("serving"), Registerer: s.metrics,
	})
	return err
}

func (s *Server) composeStore(holder *resource.CatalogHolder, chain *admission.Chain) {
	s.composeLocations(holder)
	s.registry = registry.New(registry.Options{
		Store: s.Store, Caches: s.Caches, Quota: s.Quota, Overrides: s.storageOverrides(), Uncached: s.uncached(), Catalog: holder, Admission: chain,
		NoGarbageCollector: !s.config.API.GarbageCollector, Clock: s.clock, Logger: s.logger.WithName("registry"),
		Metrics:          registry.NewMetrics(s.metrics),
		DeleteUnreadable: deletesUnreadable(),
		WaitForCaches:    !utilfeature.DefaultFeatureGate.Enabled(features.ResilientWatchCacheInitialization),
	})
}

func (s *Server) composeCatalogs(holder *resource.CatalogHolder) error {
	definitions, err := s.mode.definitions(holder)
	if err != nil {
		return err
	}
	s.catalogs = &catalogs{builtin: definitions, holder: holder, registry: s.registry, serves: s.mode.serves}
	s.catalogs.publishCustom(nil)
	return nil
}

// composeResources composes the documents that describe resources, admission to them and the controller of custom ones.
func (s *Server) composeResources(chain *admission.Chain) (err error) {
	s.schemas, err = openapi.New(openapi.Options{
		Catalogs: s.catalogs.holder, Remote: s.aggregation.source(), Forward: s.aggregation.forward,
		Idle: s.idle, Clock: s.clock, Logger: s.logger.WithName("openapi"),
	})
	if err != nil {
		return err
	}
	if err = s.mode.admission(chain); err != nil {
		return err
	}
	s.custom, err = s.composeCustom()
	return err
}

func (s *Server) composeCustom() (*crd.Controller, error) {
	converters, err := crd.NewConverters(s.resolver, s.mode.webhookClients(maxConversion))
	if err != nil {
		return nil, fmt.Errorf("prepare conversion webhooks: %w", err)
	}
	return crd.NewController(crd.ControllerOptions{
		Objects: s.registry.Client(), Follow: s.mode.follow, Publish: s.catalogs.publishCustom, BuiltIn: s.catalogs.isBuiltIn,
		AwaitFollowed: s.awaitFollowed, Converters: converters,
		Idle: s.idle, Clock: s.clock, Logger: s.logger.WithName("crd"),
	})
}

// composeHandler returns the path of a request: filters, router, handlers.
func (s *Server) composeHandler(holder *resource.CatalogHolder) (http.Handler, error) {
	resources := handlers.New(handlers.Options{
		Registry: s.registry, Clock: s.clock, Metrics: handlers.NewMetrics(s.metrics),
		MinWatchTimeout: s.config.Serving.MinRequestTimeout, DeleteWorkers: s.config.Limits.DeleteCollectionWorkers,
		MemoryLimit: s.memoryLimit,
	})
	routes, err := s.routes(holder, resources)
	if err != nil {
		return nil, err
	}
	origins, err := filters.CompileOrigins(s.config.Serving.CORSAllowedOrigins)
	if err != nil {
		return nil, fmt.Errorf("--cors-allowed-origins: %w", err)
	}
	options := filters.Options{
		Clock: s.clock, Logger: s.logger, Metrics: s.requests,
		Catalog: holder, Drain: s.drain, Delegate: s.aggregation.delegate(), Auditor: s.auditor,
		Tracing:       s.tracing.provider(),
		Authenticator: s.auth.authenticator, FrontProxy: s.auth.proxy, Authorizer: s.auth.authorizer,
		ConstrainedImpersonation:    utilfeature.DefaultFeatureGate.Enabled(features.ConstrainedImpersonation),
		RequestTimeout:              s.config.Serving.RequestTimeout,
		Fairness:                    s.flows,
		MaxRequestsInFlight:         s.config.Limits.MaxRequestsInFlight,
		MaxMutatingRequestsInFlight: s.config.Limits.MaxMutatingRequestsInFlight,
		GoawayChance:                s.config.Serving.GoawayChance,
		StrictTransportSecurity:     s.config.Serving.StrictTransportSecurity,
		CORSAllowedOrigins:          origins,
	}
	s.boundMemory(&options)
	return filters.Chain(options, s.peers.Handler(routes)), nil
}

// releaseTimeout bounds how long the hooks that hold leases may take to release them. Without a quorum they cannot.
const releaseTimeout = 3 * time.Second

// Run serves until ctx ends or a part that the replica depends on fails. Then it stops in this order:
//   - /readyz fails; within --shutdown-delay-duration this replica leaves the kubernetes Service and releases its leases.
//     Without its embedded member it can do neither, and does not wait.
//   - New requests are refused, running requests finish, watches end.
//   - Background work stops, and then buffered audit events are delivered.
//   - The embedded member transfers its leadership and stops.
func (s *Server) Run(ctx context.Context) error {
	background, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	if err := s.runAuditor(); err != nil {
		return errors.Join(err, s.closeBackend())
	}
	work, background := errgroup.WithContext(background)
	leasing, stopLeasing := context.WithCancel(background)
	defer stopLeasing()
	work.Go(s.serving.Serve)
	memberFailed := make(chan struct{})
	work.Go(func() error { return s.watchMember(background, memberFailed) })
	s.hooks.start(background, leasing, work)
	// systemd waits for it if the unit is of Type=notify. Like kube-apiserver, the server notifies when it listens.
	if _, err := daemon.SdNotify(true, daemon.SdNotifyReady); err != nil {
		s.logger.Error(err, "Failed to notify systemd")
	}

	select {
	case <-ctx.Done():
		s.logger.Info("Stopping")
	case <-background.Done():
	}
	stopping, stopped := context.WithTimeout(context.WithoutCancel(ctx), s.stopTimeout())
	defer stopped()
	err := s.serving.Shutdown(stopping, memberFailed, func(context.Context) {
		stopLeasing()
		s.hooks.awaitEnd(hookKubernetesService, memberFailed)
		select {
		case <-s.hooks.released():
		case <-memberFailed:
		case <-s.clock.After(releaseTimeout):
		}
	})
	close(s.stopped)
	cancel()
	return errors.Join(work.Wait(), err, s.closeLast())
}

func (s *Server) runAuditor() error {
	if s.auditor == nil {
		return nil
	}
	return s.auditor.Run()
}

// closeLast closes what requests and background work need until their end. A slow audit webhook does not delay the end of
// the embedded member.
func (s *Server) closeLast() error {
	delivered := make(chan struct{})
	go func() {
		defer close(delivered)
		if s.auditor != nil {
			s.auditor.Shutdown()
		}
	}()
	err := s.closeBackend()
	s.closeEncryption()
	<-delivered
	if err := s.tracing.close(); err != nil {
		s.logger.Error(err, "The last spans were not exported")
	}
	return err
}

// watchMember returns an error, which ends the replica, and closes failed when the embedded member stops unexpectedly.
func (s *Server) watchMember(ctx context.Context, failed chan<- struct{}) error {
	select {
	case err := <-s.backend.failed():
		if err != nil && ctx.Err() == nil {
			close(failed)
			return fmt.Errorf("the etcd member failed: %w", err)
		}
		return nil
	case <-ctx.Done():
		return nil
	}
}

// stopTimeout bounds the graceful shutdown: the delay, one request, the grace period of watches, and a margin.
func (s *Server) stopTimeout() time.Duration {
	c := s.config.Serving
	return c.ShutdownDelay + c.RequestTimeout + c.ShutdownWatchTerminationGrace + 10*time.Second
}

func (s *Server) closeBackend() error {
	const timeout = 10 * time.Second
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	return s.closeLocations(ctx)
}
