// Package controllers runs upstream's controllers that an API server without a kube-controller-manager beside it
// cannot live without: deletion of namespaces' contents, and garbage collection by owner reference. They run in
// one replica at a time, as clients of this server.
package controllers

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/controller-manager/pkg/informerfactory"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controller/garbagecollector"
	"k8s.io/kubernetes/pkg/controller/namespace"
)

// The controllers by the names they have in --controllers.
const (
	Namespace        = "namespace"
	GarbageCollector = "garbagecollector"
	All              = "*"
)

// Names lists the controllers there are.
func Names() []string { return []string{GarbageCollector, Namespace} }

// Check refuses names that no controller has.
func Check(names []string) error {
	for _, name := range names {
		if name != All && !slices.Contains(Names(), name) {
			return fmt.Errorf("--controllers: there is no %q; there are %v and *", name, Names())
		}
	}
	return nil
}

// Options are what the controllers work with.
type Options struct {
	// Enabled are names of controllers, or All.
	Enabled []string
	// Client reaches this server with the right to do everything.
	Client *rest.Config
	// Identity tells this replica from the others.
	Identity string
	Logger   logr.Logger
}

const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second

	namespaceWorkers  = 10
	collectorWorkers  = 20
	discoveryInterval = 30 * time.Second
	syncTimeout       = 30 * time.Second
	noResync          = 0
)

// Run runs the enabled controllers whenever this replica is the one elected, until ctx ends.
func Run(ctx context.Context, options Options) error {
	client, err := kubernetes.NewForConfig(options.Client)
	if err != nil {
		return fmt.Errorf("make the controllers' client: %w", err)
	}
	ctx = klog.NewContext(ctx, options.Logger)
	for ctx.Err() == nil {
		elector, err := newElector(client, options)
		if err != nil {
			return err
		}
		elector.Run(ctx) // returns when the lease is lost
	}
	return nil
}

func newElector(client kubernetes.Interface, options Options) (*leaderelection.LeaderElector, error) {
	return leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "quorate-controllers"},
			Client:     client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: options.Identity},
		},
		Name:            "quorate-controllers",
		LeaseDuration:   leaseDuration,
		RenewDeadline:   renewDeadline,
		RetryPeriod:     retryPeriod,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				if err := lead(ctx, options); err != nil {
					options.Logger.Error(err, "the controllers could not be started")
				}
			},
			OnStoppedLeading: func() {},
		},
	})
}

// lead runs the enabled controllers until ctx ends.
func lead(ctx context.Context, options Options) error {
	s, err := newSet(options)
	if err != nil {
		return err
	}
	if s.enabled(Namespace) {
		s.startNamespace(ctx)
	}
	if s.enabled(GarbageCollector) {
		if err := s.startCollector(ctx); err != nil {
			return err
		}
	}
	s.typed.Start(ctx.Done())
	s.partial.Start(ctx.Done())
	close(s.started)
	<-ctx.Done()
	return nil
}

// set is what the controllers of one term share.
type set struct {
	options  Options
	client   *kubernetes.Clientset
	metadata metadata.Interface
	typed    informers.SharedInformerFactory
	partial  metadatainformer.SharedInformerFactory
	started  chan struct{}
}

func newSet(options Options) (*set, error) {
	client, err := kubernetes.NewForConfig(options.Client)
	if err != nil {
		return nil, err
	}
	partial, err := metadata.NewForConfig(options.Client)
	if err != nil {
		return nil, err
	}
	return &set{
		options:  options,
		client:   client,
		metadata: partial,
		typed:    informers.NewSharedInformerFactory(client, noResync),
		partial:  metadatainformer.NewSharedInformerFactory(partial, noResync),
		started:  make(chan struct{}),
	}, nil
}

func (s *set) enabled(name string) bool {
	return slices.Contains(s.options.Enabled, name) || slices.Contains(s.options.Enabled, All)
}

func (s *set) startNamespace(ctx context.Context) {
	controller := namespace.NewNamespaceController(ctx, s.client, s.metadata,
		s.client.Discovery().ServerPreferredNamespacedResources, s.typed.Core().V1().Namespaces(), 5*time.Minute, corev1.FinalizerKubernetes)
	go controller.Run(ctx, namespaceWorkers)
}

func (s *set) startCollector(ctx context.Context) error {
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(s.client.Discovery()))
	collector, err := garbagecollector.NewGarbageCollector(ctx, s.client, s.metadata, mapper,
		garbagecollector.DefaultIgnoredResources(), informerfactory.NewInformerFactory(s.typed, s.partial), s.started)
	if err != nil {
		return fmt.Errorf("make the garbage collector: %w", err)
	}
	go collector.Run(ctx, collectorWorkers, syncTimeout)
	go collector.Sync(ctx, discovery.ServerResourcesInterface(s.client.Discovery()), discoveryInterval)
	return nil
}
