// Package autoregister manages the APIServices of the API groups that this server serves: built-in groups and groups of
// CustomResourceDefinitions. It also sets the condition Available of these APIServices. It does not change APIServices
// of extension API servers.
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
	"quorate.dev/panics"
)

// Resource is the resource of APIServices.
var Resource = schema.GroupResource{Group: apiregistration.GroupName, Resource: "apiservices"}

const (
	// parallel is the number of concurrent writes of the first sync. It is large enough to fill the storage's write
	// batches.
	parallel = 32
	// retryAfter and retryAtMost bound the backoff of a failed sync.
	retryAfter, retryAtMost = 5 * time.Millisecond, 30 * time.Second
)

// Options configure a Controller.
type Options struct {
	Objects resource.Client
	// Follow watches APIServices until the context ends. It calls handle for every existing APIService, then synced
	// once, and then handle for every changed one; a nil object means that the APIService was deleted.
	Follow func(ctx context.Context, handle func(name string, object runtime.Object), synced func()) error
	// BuiltIn are the group versions that are served regardless of custom resources.
	BuiltIn []schema.GroupVersion
	Clock   clock.WithTicker
	Logger  logr.Logger
}

// Controller syncs APIServices. Every replica runs a Controller, and a kube-apiserver on the same etcd may run
// upstream's. They compute equal desired states, and a state that is already stored is not written again.
type Controller struct {
	Options
	queue     workqueue.TypedRateLimitingInterface[string]
	known     chan struct{} // closed when all existing APIServices were observed
	defined   chan struct{} // closed when all existing CustomResourceDefinitions were observed
	began     chan struct{} // closed when the first sync begins
	completed chan struct{} // closed, with lock held, when pending becomes empty

	lock        sync.Mutex // guards the fields below; not held during requests
	builtin     sets.Set[schema.GroupVersion]
	services    map[string]*apiregistration.APIService // last observed states; read-only
	definitions map[string][]schema.GroupVersion       // served versions by name of the CustomResourceDefinition
	served      map[schema.GroupVersion]int            // Invariant: number of definitions that serve it, never 0
	undecodable sets.Set[string]                       // names of CustomResourceDefinitions whose state is not known
	atStart     sets.Set[string]
	synced      sets.Set[string]
	pending     sets.Set[string] // built-in APIServices not yet observed as available
}

// New returns a controller; Run runs it.
func New(options Options) *Controller {
	c := &Controller{
		Options: options,
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[string](retryAfter, retryAtMost),
			workqueue.TypedRateLimitingQueueConfig[string]{Name: "autoregister", Clock: options.Clock}),
		known: make(chan struct{}), defined: make(chan struct{}), began: make(chan struct{}), completed: make(chan struct{}),
		builtin: sets.Set[schema.GroupVersion]{}, services: map[string]*apiregistration.APIService{},
		definitions: map[string][]schema.GroupVersion{}, served: map[schema.GroupVersion]int{},
		undecodable: sets.Set[string]{}, atStart: sets.Set[string]{}, synced: sets.Set[string]{}, pending: sets.Set[string]{},
	}
	for _, gv := range options.BuiltIn {
		if _, ok := priority.BuiltIn(gv); ok {
			c.builtin.Insert(gv)
			c.pending.Insert(nameOf(gv))
		}
	}
	return c
}

// Known returns a channel that is closed when all APIServices that existed at the start were observed.
func (c *Controller) Known() <-chan struct{} { return c.known }

// Began returns a channel that is closed when the first sync begins.
func (c *Controller) Began() <-chan struct{} { return c.began }

// Completed returns an error until every built-in group version has an available APIService.
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

// SetDefinition stores the state of a CustomResourceDefinition; nil marks it as deleted.
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
	c.setDecoded(name)
	c.lock.Unlock()
	if slices.Equal(before, after) {
		return
	}
	for _, gv := range slices.Concat(before, after) {
		c.queue.Add(nameOf(gv))
	}
}

// SetUndecodable marks the state of a CustomResourceDefinition as unknown until SetDefinition is called for it. While
// any state is unknown, the controller deletes no APIService, because an undecodable definition may serve its group
// version. kube-apiserver's controller does not start in this case.
func (c *Controller) SetUndecodable(name string) {
	c.lock.Lock()
	defer c.lock.Unlock()
	c.undecodable.Insert(name)
}

// setDecoded marks the state of a CustomResourceDefinition as known. If no state is unknown any more, it queues the
// APIServices that were not deleted because of SetUndecodable. The caller holds c.lock.
func (c *Controller) setDecoded(name string) {
	if !c.undecodable.Has(name) {
		return
	}
	if c.undecodable.Delete(name); len(c.undecodable) > 0 {
		return
	}
	for service := range c.services {
		c.queue.Add(service)
	}
}

// DefinitionsKnown must be called once SetDefinition or SetUndecodable has been called for all existing
// CustomResourceDefinitions.
func (c *Controller) DefinitionsKnown() { closeOnce(c.defined) }

// servedBy returns the versions served by a CustomResourceDefinition in internal version.
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

// Run syncs APIServices until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(system.WithServerUser(ctx))
	defer cancel()
	workers, ctx := errgroup.WithContext(ctx)
	workers.Go(func() error {
		return panics.Catch(func() error {
			c.work(ctx)
			return nil
		})
	})
	defer context.AfterFunc(ctx, c.queue.ShutDown)()
	err := c.Follow(ctx, c.observe, func() { closeOnce(c.known) })
	cancel()
	c.queue.ShutDown()
	if panicked := workers.Wait(); panicked != nil {
		return panicked
	}
	if err != nil {
		return fmt.Errorf("follow APIServices: %w", err)
	}
	return nil
}

// closeOnce closes the channel if it is open. It must not be called concurrently for the same channel.
func closeOnce(channel chan struct{}) {
	select {
	case <-channel:
	default:
		close(channel)
	}
}

// observe stores the state of an APIService.
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

// work waits until all existing APIServices and CustomResourceDefinitions are known, and syncs all APIServices. Then it
// syncs each one when it changes. An earlier sync would delete the APIServices of CustomResourceDefinitions that are
// not known yet.
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
		if err := panics.Catch(func() error { return c.sync(ctx, name) }); err != nil {
			c.retry(ctx, name, err)
		} else {
			c.queue.Forget(name)
		}
		c.queue.Done(name)
	}
}

// begin runs the first sync.
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
			if err := panics.Catch(func() error { return c.sync(ctx, name) }); err != nil {
				c.retry(ctx, name, err)
			}
			return nil
		})
	}
	_ = all.Wait() // always nil
}

func (c *Controller) retry(ctx context.Context, name string, err error) {
	if ctx.Err() == nil {
		c.Logger.Error(err, "Failed to sync an APIService; retrying", "name", name)
		c.queue.AddRateLimited(name)
	}
}

// sync reconciles one APIService.
func (c *Controller) sync(ctx context.Context, name string) error {
	c.lock.Lock()
	current, wanted := c.services[name], c.desired(name)
	past := history{atStart: c.atStart.Has(name), synced: c.synced.Has(name)}
	do := decide(current, wanted, past)
	mayRemove := len(c.undecodable) == 0
	c.lock.Unlock()
	if do == remove && !mayRemove {
		return nil
	}
	if err := c.apply(ctx, do, current, wanted); err != nil {
		return err
	}
	c.lock.Lock()
	c.synced.Insert(name)
	c.lock.Unlock()
	if current == nil || hasLocalCondition(current) {
		return nil
	}
	return c.setAvailable(ctx, name)
}

// desired returns the desired APIService with a name, nil if it must not exist. The caller holds c.lock.
func (c *Controller) desired(name string) *apiregistration.APIService {
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

// nameOf returns the name of the APIService of a group version.
func nameOf(gv schema.GroupVersion) string { return gv.Version + "." + gv.Group }

func apiService(gv schema.GroupVersion, place priority.Priority, how string) *apiregistration.APIService {
	return &apiregistration.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: nameOf(gv), Labels: map[string]string{managedLabel: how}},
		Spec: apiregistration.APIServiceSpec{
			Group: gv.Group, Version: gv.Version, GroupPriorityMinimum: place.Group, VersionPriority: place.Version,
		},
	}
}

// apply executes a decision. It ignores conflicts, because the event of the conflicting write queues the name again.
func (c *Controller) apply(ctx context.Context, do action, current, wanted *apiregistration.APIService) error {
	var err error
	switch do {
	case create:
		key := resource.Key{GroupResource: Resource}
		if _, err = c.Objects.Create(ctx, key, wanted, resource.WriteOptions{}); apierrors.IsAlreadyExists(err) {
			return nil
		}
	case update:
		_, err = c.Objects.Update(ctx, resource.Key{
			GroupResource: Resource, Name: current.Name,
		}, func(object runtime.Object) error {
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

// replaceSpec sets the spec of an APIService to the spec of wanted. It returns a conflict if the object has changed
// since compared was read, because the decision to replace the spec was made for compared.
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

// errConditionSet aborts an update because the object already has the condition.
var errConditionSet = errors.New("the condition is set")

// setAvailable sets the Available condition of a local APIService.
func (c *Controller) setAvailable(ctx context.Context, name string) error {
	key := resource.Key{GroupResource: Resource, Subresource: "status", Name: name}
	_, err := c.Objects.Update(ctx, key, func(object runtime.Object) error {
		service, ok := object.(*apiregistration.APIService)
		switch {
		case !ok:
			return fmt.Errorf("%T is not an APIService", object)
		case hasLocalCondition(service):
			return errConditionSet
		}
		apiregistration.SetAPIServiceCondition(service, localCondition(metav1.NewTime(c.Clock.Now())))
		return nil
	}, resource.WriteOptions{})
	if errors.Is(err, errConditionSet) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
