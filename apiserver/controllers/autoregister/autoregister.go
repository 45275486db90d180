// Package autoregister keeps the APIService objects of what this server serves itself: one for each version of a built-in
// group, one for each version of a group that CustomResourceDefinitions serve; and it says that they are available. Those
// that stand for another server are left to others.
package autoregister

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/builtin/priority"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/system"
)

// Resource is where APIService objects are.
var Resource = schema.GroupResource{Group: apiregistration.GroupName, Resource: "apiservices"}

const (
	// parallel is how many objects are written at once at the start: enough to fill the storage's batches.
	parallel = 32
	// retryAfter and retryAtMost bound the time until something that failed is tried again.
	retryAfter, retryAtMost = 5 * time.Millisecond, 30 * time.Second
)

// Options are what a Controller works with.
type Options struct {
	Objects resource.Client
	// Follow calls handle for every APIService as it is and as it changes (nil: deleted), and synced once handle has
	// seen all that existed. It returns when the context ends.
	Follow func(ctx context.Context, handle func(name string, object runtime.Object), synced func()) error
	// BuiltIn are the versions of groups that are served whatever custom resources there are.
	BuiltIn []schema.GroupVersion
	Clock   clock.WithTicker
	Logger  logr.Logger
}

// Controller keeps the objects in step. Every replica runs one, also beside kube-apiserver: they want the same, and
// write only where something differs.
type Controller struct {
	Options
	queue     workqueue.TypedRateLimitingInterface[string]
	known     chan struct{} // closed once all existing APIServices have been observed
	defined   chan struct{} // closed once all existing CustomResourceDefinitions have
	began     chan struct{} // closed when the first pass begins
	completed chan struct{} // closed once all built-in ones have been seen available

	lock        sync.Mutex
	builtin     sets.Set[schema.GroupVersion]
	services    map[string]*apiregistration.APIService // as observed; nobody changes them
	definitions map[string][]schema.GroupVersion       // what each CustomResourceDefinition serves
	served      map[schema.GroupVersion]int            // by how many of them
	atStart     sets.Set[string]
	synced      sets.Set[string]
	pending     sets.Set[string] // built-in ones that have not been seen available
}

// New returns a controller; Run starts it.
func New(options Options) *Controller {
	c := &Controller{
		Options: options,
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[string](retryAfter, retryAtMost),
			workqueue.TypedRateLimitingQueueConfig[string]{Clock: options.Clock}),
		known: make(chan struct{}), defined: make(chan struct{}), began: make(chan struct{}), completed: make(chan struct{}),
		builtin: sets.Set[schema.GroupVersion]{}, services: map[string]*apiregistration.APIService{},
		definitions: map[string][]schema.GroupVersion{}, served: map[schema.GroupVersion]int{},
		atStart: sets.Set[string]{}, synced: sets.Set[string]{}, pending: sets.Set[string]{},
	}
	for _, gv := range options.BuiltIn {
		if _, ok := priority.BuiltIn(gv); ok {
			c.builtin.Insert(gv)
			c.pending.Insert(nameOf(gv))
		}
	}
	return c
}

// Known is closed once all APIServices that existed at the start have been observed.
func (c *Controller) Known() <-chan struct{} { return c.known }

// Began is closed when the objects begin to be brought in step: all that was there at the start is known.
func (c *Controller) Began() <-chan struct{} { return c.began }

// Completed fails until each built-in group and version has been seen to have an APIService that is available.
func (c *Controller) Completed(context.Context) error {
	select {
	case <-c.completed:
		return nil
	default:
	}
	c.lock.Lock()
	defer c.lock.Unlock()
	return fmt.Errorf("missing APIService: %v", sets.List(c.pending))
}

// SetDefinition takes in a CustomResourceDefinition as it is now, nil when it is gone.
func (c *Controller) SetDefinition(name string, object runtime.Object) {
	after := servedBy(object)
	c.lock.Lock()
	before := c.definitions[name]
	if len(after) == 0 {
		delete(c.definitions, name)
	} else {
		c.definitions[name] = after
	}
	for _, gv := range after {
		c.served[gv]++
	}
	for _, gv := range before {
		if c.served[gv]--; c.served[gv] == 0 {
			delete(c.served, gv)
		}
	}
	c.lock.Unlock()
	if slices.Equal(before, after) {
		return
	}
	for _, gv := range slices.Concat(before, after) {
		c.queue.Add(nameOf(gv))
	}
}

// DefinitionsKnown says that all CustomResourceDefinitions that existed at the start have been set.
func (c *Controller) DefinitionsKnown() { closeOnce(c.defined) }

// servedBy are the versions that a CustomResourceDefinition in internal version serves.
func servedBy(object runtime.Object) []schema.GroupVersion {
	definition, ok := object.(*apiextensions.CustomResourceDefinition)
	if !ok {
		return nil
	}
	var versions []schema.GroupVersion
	for _, version := range definition.Spec.Versions {
		if version.Served {
			versions = append(versions, schema.GroupVersion{Group: definition.Spec.Group, Version: version.Name})
		}
	}
	return versions
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	var workers sync.WaitGroup
	defer workers.Wait()
	ctx, cancel := context.WithCancel(system.WithServerUser(ctx))
	defer cancel()
	workers.Go(func() { c.work(ctx) })
	workers.Go(func() {
		<-ctx.Done()
		c.queue.ShutDown()
	})
	if err := c.Follow(ctx, c.observe, func() { closeOnce(c.known) }); err != nil {
		return fmt.Errorf("follow APIServices: %w", err)
	}
	return nil
}

// closeOnce must not be called for one channel from two goroutines.
func closeOnce(channel chan struct{}) {
	select {
	case <-channel:
	default:
		close(channel)
	}
}

// observe takes in one APIService as it now is.
func (c *Controller) observe(name string, object runtime.Object) {
	service, _ := object.(*apiregistration.APIService)
	c.lock.Lock()
	if service == nil {
		delete(c.services, name)
	} else {
		c.services[name] = service
		if apiregistration.IsAPIServiceConditionTrue(service, apiregistration.Available) && c.pending.Has(name) {
			if c.pending.Delete(name); len(c.pending) == 0 {
				close(c.completed)
			}
		}
	}
	c.lock.Unlock()
	c.queue.Add(name)
}

// work brings all objects in step at once when all is known, and from then on each when something about it changes. A
// CustomResourceDefinition that is not known yet must not cost its APIService the life.
func (c *Controller) work(ctx context.Context) {
	for _, all := range []chan struct{}{c.known, c.defined} {
		select {
		case <-all:
		case <-ctx.Done():
			return
		}
	}
	c.begin(ctx)
	for {
		name, shutdown := c.queue.Get()
		if shutdown {
			return
		}
		if err := c.sync(ctx, name); err != nil {
			c.retry(ctx, name, err)
		} else {
			c.queue.Forget(name)
		}
		c.queue.Done(name)
	}
}

// begin does the first pass.
func (c *Controller) begin(ctx context.Context) {
	c.lock.Lock()
	c.atStart = sets.KeySet(c.services)
	names := c.atStart.Clone()
	for _, gv := range slices.Concat(c.builtin.UnsortedList(), slices.Collect(maps.Keys(c.served))) {
		names.Insert(nameOf(gv))
	}
	c.lock.Unlock()
	close(c.began)
	var all errgroup.Group
	all.SetLimit(parallel)
	for name := range names {
		all.Go(func() error {
			if err := c.sync(ctx, name); err != nil {
				c.retry(ctx, name, err)
			}
			return nil
		})
	}
	_ = all.Wait() // none returns one
}

func (c *Controller) retry(ctx context.Context, name string, err error) {
	if ctx.Err() == nil {
		c.Logger.Error(err, "An APIService could not be brought in step; trying again", "name", name)
		c.queue.AddRateLimited(name)
	}
}

// sync brings one object in step.
func (c *Controller) sync(ctx context.Context, name string) error {
	c.lock.Lock()
	current, wanted := c.services[name], c.wanted(name)
	past := history{atStart: c.atStart.Has(name), synced: c.synced.Has(name)}
	c.lock.Unlock()
	if err := c.carryOut(ctx, decide(current, wanted, past), current, wanted); err != nil {
		return err
	}
	c.lock.Lock()
	c.synced.Insert(name)
	c.lock.Unlock()
	if current == nil || settled(current) {
		return nil
	}
	return c.settle(ctx, name)
}

// wanted returns the APIService that should be there under a name, nil for none. The lock is held.
func (c *Controller) wanted(name string) *apiregistration.APIService {
	version, group, _ := strings.Cut(name, ".")
	gv := schema.GroupVersion{Group: group, Version: version}
	switch {
	case c.served[gv] > 0:
		return apiService(gv, priority.Custom, constantly)
	case c.builtin.Has(gv):
		known, _ := priority.BuiltIn(gv)
		return apiService(gv, known, onStart)
	}
	return nil
}

// nameOf is the name of the APIService of a version of a group.
func nameOf(gv schema.GroupVersion) string { return gv.Version + "." + gv.Group }

func apiService(gv schema.GroupVersion, place priority.Priority, how string) *apiregistration.APIService {
	return &apiregistration.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: nameOf(gv), Labels: map[string]string{managedLabel: how}},
		Spec: apiregistration.APIServiceSpec{
			Group: gv.Group, Version: gv.Version, GroupPriorityMinimum: place.Group, VersionPriority: place.Version,
		},
	}
}

// carryOut does what was decided. Where somebody else was faster nothing is done: the news of it comes.
func (c *Controller) carryOut(ctx context.Context, do action, current, wanted *apiregistration.APIService) error {
	var err error
	switch do {
	case create:
		key := resource.Key{GroupResource: Resource}
		if _, err = c.Objects.Create(ctx, key, wanted, resource.WriteOptions{}); apierrors.IsAlreadyExists(err) {
			return nil
		}
	case update:
		_, err = c.Objects.Update(ctx, resource.Key{GroupResource: Resource, Name: current.Name}, func(object runtime.Object) error {
			return replaceSpec(object, current, wanted)
		}, resource.WriteOptions{})
	case remove:
		err = c.Objects.Delete(ctx,
			resource.Key{GroupResource: Resource, Name: current.Name},
			&metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(current.UID))})
	}
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// replaceSpec changes an object that still is what was compared.
func replaceSpec(object runtime.Object, compared, wanted *apiregistration.APIService) error {
	service, ok := object.(*apiregistration.APIService)
	if !ok {
		return fmt.Errorf("%T is not an APIService", object)
	}
	if service.ResourceVersion != compared.ResourceVersion {
		return apierrors.NewConflict(Resource, service.Name, errors.New("changed since it was read"))
	}
	service.Spec = wanted.Spec
	return nil
}

// errSettled ends an update that has nothing to change.
var errSettled = errors.New("the condition is there")

// settle says of a local APIService that it is available.
func (c *Controller) settle(ctx context.Context, name string) error {
	key := resource.Key{GroupResource: Resource, Subresource: "status", Name: name}
	_, err := c.Objects.Update(ctx, key, func(object runtime.Object) error {
		service, ok := object.(*apiregistration.APIService)
		switch {
		case !ok:
			return fmt.Errorf("%T is not an APIService", object)
		case settled(service):
			return errSettled
		}
		apiregistration.SetAPIServiceCondition(service, localCondition(metav1.NewTime(c.Clock.Now())))
		return nil
	}, resource.WriteOptions{})
	if errors.Is(err, errSettled) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
