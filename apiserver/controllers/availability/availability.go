// Package availability keeps the condition Available of the APIServices of extension API servers, as kube-aggregator's
// remote AvailableConditionController does. The condition of this server's own APIServices belongs to autoregister.
//
// Every replica runs a Controller, because a server can be reachable from one replica only. Equal results are not
// written again.
package availability

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/aggregator"
	"quorate.dev/apiserver/registry/follow"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/system"
	"quorate.dev/apiserver/watchcache"
	"quorate.dev/panics"
)

var (
	services       = schema.GroupResource{Resource: "services"}
	endpointSlices = schema.GroupResource{Group: "discovery.k8s.io", Resource: "endpointslices"}
	apiServices    = schema.GroupResource{Group: apiregistration.GroupName, Resource: "apiservices"}
)

const (
	// resync is the interval between checks of a server without events, as in kube-aggregator.
	resync = 30 * time.Second
	// retryAfter and retryAtMost bound the backoff after a failed discovery check, as in kube-aggregator.
	retryAfter, retryAtMost = 5 * time.Millisecond, 30 * time.Second
	// messageInterval is the minimum interval between writes that change only the message, because the message may
	// differ in each check.
	messageInterval = 10 * time.Minute
	// parallel is the number of parallel checks per queue. A check of a server that does not respond takes as long as
	// the timeout of a probe.
	parallel = 64
)

// Options configure a Controller.
type Options struct {
	Objects resource.Client
	// Backend returns the backend of an APIService; nil if there is none.
	Backend        func(name string) *aggregator.Backend
	Services       corelisters.ServiceLister
	EndpointSlices discoverylisters.EndpointSliceLister
	Follow         follow.Func
	Clock          clock.WithTicker
	Logger         logr.Logger
	Registerer     prometheus.Registerer
}

// Controller checks extension API servers.
type Controller struct {
	Options
	metrics *metrics
	slices  *sliceIndex
	// available has the servers that were available in their last check. All other servers are in others, so that
	// servers that do not respond cannot delay the checks of available ones.
	available, others workqueue.TypedRateLimitingInterface[string]
	started           chan struct{} // closed, with mu held, when the first APIService of an extension API server is set

	mu        sync.Mutex // guards the fields below
	observed  map[string]*apiregistration.APIService
	byService map[types.NamespacedName]sets.Set[string]
	passed    sets.Set[string]    // APIServices whose last check had no failed probe
	written   map[string]*written // last write of this replica for each APIService
}

// written describes a condition that this replica has written: the time, and the spec for which it was determined.
type written struct {
	at   time.Time
	spec apiregistration.APIServiceSpec
}

// New returns a controller. Run runs it.
func New(options Options) *Controller {
	newQueue := func(name string) workqueue.TypedRateLimitingInterface[string] {
		return workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[string](retryAfter, retryAtMost),
			workqueue.TypedRateLimitingQueueConfig[string]{Name: name, Clock: options.Clock})
	}
	return &Controller{
		Options: options, metrics: newMetrics(options.Registerer), slices: newSliceIndex(),
		available: newQueue("RemoteAvailabilityController"), others: newQueue("RemoteAvailabilityController_unavailable"),
		started:  make(chan struct{}),
		observed: map[string]*apiregistration.APIService{}, byService: map[types.NamespacedName]sets.Set[string]{},
		passed: sets.Set[string]{}, written: map[string]*written{},
	}
}

// SetAPIService stores the state of an APIService; any other object marks it as deleted.
func (c *Controller) SetAPIService(name string, object runtime.Object) {
	after, _ := object.(*apiregistration.APIService)
	c.mu.Lock()
	defer c.mu.Unlock()
	if before := c.observed[name]; before != nil {
		key := serviceOf(before)
		if c.byService[key].Delete(name); len(c.byService[key]) == 0 {
			delete(c.byService, key)
		}
	}
	if after == nil || after.Spec.Service == nil {
		delete(c.observed, name)
		c.passed.Delete(name)
		delete(c.written, name)
		if after == nil {
			c.metrics.forget(name)
		} else {
			c.metrics.set(name, true)
		}
		return
	}
	if c.observed[name] == nil && apiregistration.IsAPIServiceConditionTrue(after, apiregistration.Available) {
		c.passed.Insert(name) // another replica, or this one before a restart, has checked the server
	}
	c.observed[name] = after
	key := serviceOf(after)
	if c.byService[key] == nil {
		c.byService[key] = sets.Set[string]{}
	}
	c.byService[key].Insert(name)
	if !isClosed(c.started) {
		close(c.started)
	}
	c.add(name)
}

func serviceOf(service *apiregistration.APIService) types.NamespacedName {
	return types.NamespacedName{Namespace: service.Spec.Service.Namespace, Name: service.Spec.Service.Name}
}

func isClosed(channel chan struct{}) bool {
	select {
	case <-channel:
		return true
	default:
		return false
	}
}

// add queues a check. The caller holds c.mu.
func (c *Controller) add(name string) {
	if c.passed.Has(name) {
		c.available.Add(name)
	} else {
		c.others.Add(name)
	}
}

// serviceChanged queues the checks that depend on a Service.
func (c *Controller) serviceChanged(service types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name := range c.byService[service] {
		c.add(name)
	}
}

// Run checks servers until ctx ends. Without APIServices of extension API servers it follows neither Services nor
// EndpointSlices.
func (c *Controller) Run(ctx context.Context) error {
	defer c.available.ShutDown()
	defer c.others.ShutDown()
	select {
	case <-c.started:
	case <-ctx.Done():
		return nil
	}
	group, ctx := errgroup.WithContext(system.WithServerUser(ctx))
	servicesKnown, slicesKnown := make(chan struct{}), make(chan struct{})
	group.Go(func() error {
		return panics.Catch(func() error {
			return c.follow(ctx, services, c.observeService, func() { close(servicesKnown) })
		})
	})
	group.Go(func() error {
		return panics.Catch(func() error {
			return c.follow(ctx, endpointSlices, c.observeSlice, func() { close(slicesKnown) })
		})
	})
	group.Go(func() error {
		for _, known := range []chan struct{}{servicesKnown, slicesKnown} {
			select {
			case <-known:
			case <-ctx.Done():
				return nil
			}
		}
		return panics.Catch(func() error { return c.work(ctx) })
	})
	return group.Wait()
}

// follow calls FollowEntries. If the resource is not served, it waits until ctx ends, as an informer of kube-aggregator
// would.
func (c *Controller) follow(
	ctx context.Context, name schema.GroupResource, handle func(before, after *watchcache.Entry), synced func(),
) error {
	options := follow.Options{Entries: handle, Synced: synced}
	if err := c.Follow(ctx, resource.Key{GroupResource: name}, options); err != nil && ctx.Err() == nil {
		c.Logger.Error(err, "APIServices of extension API servers are not checked", "resource", name.String())
	}
	<-ctx.Done()
	return nil
}

func (c *Controller) observeService(before, after *watchcache.Entry) {
	entry := after
	if entry == nil {
		entry = before
	}
	c.serviceChanged(types.NamespacedName{Namespace: entry.Namespace(), Name: entry.Name()})
}

func (c *Controller) observeSlice(before, after *watchcache.Entry) {
	for _, service := range c.slices.observe(before, after) {
		c.serviceChanged(service)
	}
}

// work runs the checks of both queues until ctx ends.
func (c *Controller) work(ctx context.Context) error {
	var group sync.WaitGroup
	group.Go(func() { c.drain(ctx, c.available) })
	group.Go(func() { c.drain(ctx, c.others) })
	<-ctx.Done()
	c.available.ShutDown()
	c.others.ShutDown()
	group.Wait()
	return nil
}

// drain checks the servers of a queue until it is shut down.
func (c *Controller) drain(ctx context.Context, queue workqueue.TypedRateLimitingInterface[string]) {
	var group errgroup.Group
	group.SetLimit(parallel)
	for {
		name, ended := queue.Get()
		if ended {
			_ = group.Wait() // always nil
			return
		}
		group.Go(func() error {
			defer queue.Done(name)
			err := panics.Catch(func() error { return c.sync(ctx, name) })
			if ctx.Err() == nil {
				c.reschedule(name, err)
			}
			return nil
		})
	}
}

// reschedule queues the next check of a server.
func (c *Controller) reschedule(name string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.observed[name] == nil:
		c.others.Forget(name)
	case err != nil:
		c.Logger.V(1).Info("Check of an extension API server failed; retrying", "name", name, "err", err.Error())
		c.passed.Delete(name)
		c.others.AddRateLimited(name)
	default:
		c.passed.Insert(name)
		c.others.Forget(name)
		c.available.AddAfter(name, resync)
	}
}

// sync checks a server and stores the result. An error means that the check should be repeated soon.
func (c *Controller) sync(ctx context.Context, name string) error {
	c.mu.Lock()
	service := c.observed[name]
	c.mu.Unlock()
	backend := c.Backend(name)
	if service == nil || backend == nil {
		return nil
	}
	condition, failure := c.check(ctx, service, backend)
	if condition == nil || ctx.Err() != nil {
		return failure
	}
	condition.LastTransitionTime.Time = c.Clock.Now()
	c.metrics.set(name, condition.Status == apiregistration.ConditionTrue)
	if err := c.store(ctx, service, condition); err != nil {
		return err
	}
	return failure
}

// shouldWrite reports whether a condition must be written: if its status or reason has changed, or if its message has
// changed and either the spec has changed too or the last write is at least messageInterval ago.
func (c *Controller) shouldWrite(
	observed *apiregistration.APIService, condition *apiregistration.APIServiceCondition,
) bool {
	before := apiregistration.GetAPIServiceConditionByType(observed, condition.Type)
	if before == nil || before.Status != condition.Status || before.Reason != condition.Reason {
		return true
	}
	if withoutClient(before.Message) == withoutClient(condition.Message) {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	last := c.written[observed.Name]
	return last == nil || c.Clock.Since(last.at) >= messageInterval ||
		!equality.Semantic.DeepEqual(last.spec, observed.Spec)
}

// errUnneeded aborts an update because the APIService has changed since it was checked.
var errUnneeded = errors.New("the condition is set, or the APIService has changed since it was checked")

// store writes the condition if shouldWrite returns true. If the APIService has changed since it was observed, store
// does nothing, because the event of the change queues another check.
func (c *Controller) store(
	ctx context.Context, observed *apiregistration.APIService, condition *apiregistration.APIServiceCondition,
) error {
	if !c.shouldWrite(observed, condition) {
		return nil
	}
	key := resource.Key{GroupResource: apiServices, Subresource: "status", Name: observed.Name}
	_, err := c.Objects.Update(ctx, key, func(object runtime.Object) error {
		service, ok := object.(*apiregistration.APIService)
		switch {
		case !ok:
			return fmt.Errorf("%T is not an APIService", object)
		case service.ResourceVersion != observed.ResourceVersion:
			return errUnneeded
		}
		apiregistration.SetAPIServiceCondition(service, *condition)
		return nil
	}, resource.WriteOptions{})
	switch {
	case errors.Is(err, errUnneeded), apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("write the condition of %s: %w", observed.Name, err)
	}
	c.mu.Lock()
	if c.observed[observed.Name] != nil {
		c.written[observed.Name] = &written{at: c.Clock.Now(), spec: observed.Spec}
	}
	c.mu.Unlock()
	c.Logger.Info("Changed the availability of an APIService", "name", observed.Name, "status", condition.Status,
		"reason", condition.Reason, "message", condition.Message)
	if condition.Status != apiregistration.ConditionTrue &&
		apiregistration.IsAPIServiceConditionTrue(observed, apiregistration.Available) {
		c.metrics.becameUnavailable(observed.Name, condition.Reason)
	}
	return nil
}
