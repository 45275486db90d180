package crd

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/lazy"
	"quorate.dev/apiserver/resource"
	"quorate.dev/panics"
)

// Resource is the resource of CustomResourceDefinitions.
var Resource = schema.GroupResource{Group: apiextensions.GroupName, Resource: "customresourcedefinitions"}

// Follow calls handle for every object of a resource, existing and changed (nil: deleted), and synced after the
// existing ones. It returns when the context ends.
type Follow func(ctx context.Context, resource schema.GroupResource, handle func(key string, object runtime.Object), synced func()) error

// ControllerOptions configure a Controller.
type ControllerOptions struct {
	Objects resource.Client
	Follow  Follow
	// AwaitFollowed returns when Follow has called handle for every change that was stored before the call.
	AwaitFollowed func(ctx context.Context) error
	// Publish publishes the definitions of all served custom resources in the catalog.
	Publish func(definitions []*resource.Definition)
	// BuiltIn reports whether a resource is built in: deleting a CustomResourceDefinition of the same name must not
	// delete its objects.
	BuiltIn func(schema.GroupResource) bool
	// Idle drops what definitions have built from their schemas when it is not used.
	Idle *lazy.Set
	// Converters calls conversion webhooks.
	Converters Converters
	Clock      clock.WithTicker
	Logger     logr.Logger
}

// Controller reconciles CustomResourceDefinitions: it sets their conditions, publishes their definitions and deletes
// the custom resources of deleted ones. Every replica runs one; every decision is a function of stored state, so they
// agree.
type Controller struct {
	ControllerOptions
	builder *Builder
	queue   workqueue.TypedRateLimitingInterface[string]
	changed chan struct{} // capacity 1; published definitions are outdated
	known   chan struct{} // closed when all existing definitions were observed
	served  chan struct{} // closed when those were published

	lock    sync.Mutex
	records map[string]*record
	// requested counts the changes to publish, inForce are those of them that are published.
	requested, inForce int64
	inForceChanged     chan struct{} // closed when inForce increases; nil: no caller waits for it

	checked map[string]checkedSchemas // by name; used by work only
}

// checkedSchemas is the NonStructuralSchema condition of a definition at a revision; nil: none.
type checkedSchemas struct {
	revision string
	problem  *condition
}

// record is the controller's state of one CustomResourceDefinition.
type record struct {
	group       string
	names       apiextensionsv1.CustomResourceDefinitionNames // accepted
	accepted    bool                                          // all requested names
	upToDate    bool                                          // the stored status is up to date
	deleting    bool
	generation  int64
	revision    string // of the definition
	terminating bool
	established bool
	permission  *permission
	// definition has served versions only if the condition Established is stored. nil: the names are not accepted, or
	// it cannot be served.
	definition *resource.Definition
}

// NewController returns a controller; Run runs it.
func NewController(options ControllerOptions) (*Controller, error) {
	builder, err := NewBuilder(options.Idle, options.Converters, options.Clock)
	if err != nil {
		return nil, err
	}
	return &Controller{
		ControllerOptions: options,
		builder:           builder,
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[string](5*time.Millisecond, 30*time.Second),
			workqueue.TypedRateLimitingQueueConfig[string]{Name: "crd_naming_condition_controller", Clock: options.Clock}),
		changed: make(chan struct{}, 1),
		known:   make(chan struct{}),
		served:  make(chan struct{}),
		records: map[string]*record{},
		checked: map[string]checkedSchemas{},
	}, nil
}

// Run reconciles until the context ends.
func (c *Controller) Run(ctx context.Context) error {
	var workers sync.WaitGroup
	defer workers.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	workers.Go(func() { c.whenKnown(ctx, c.publishChanges) })
	workers.Go(func() { c.whenKnown(ctx, c.work) })
	workers.Go(func() {
		<-ctx.Done()
		c.queue.ShutDown()
	})
	if err := c.Follow(ctx, Resource, c.observe, c.observedAll); err != nil {
		return fmt.Errorf("follow CustomResourceDefinitions: %w", err)
	}
	return nil
}

// whenKnown delays name decisions and publishing until all existing definitions are known.
func (c *Controller) whenKnown(ctx context.Context, do func(context.Context)) {
	select {
	case <-ctx.Done():
	case <-c.known:
		do(ctx)
	}
}

// observe stores the state of a definition.
func (c *Controller) observe(key string, object runtime.Object) {
	if object == nil {
		c.removeRecord(key)
		return
	}
	crd, err := outline(object)
	if err != nil {
		c.Logger.Error(err, "Failed to convert a CustomResourceDefinition", "name", key)
		return
	}
	previous := c.record(crd.Name) // only this goroutine replaces it
	next := describe(crd, previous)
	if next.definable() && !next.keepDefinition(previous) {
		next.define(c.builder, object, previous, c.Logger)
	}
	c.lock.Lock()
	defer c.lock.Unlock()
	c.records[crd.Name] = next
	switch {
	case previous == nil && next.definition == nil:
	case previous != nil && next.definition == previous.definition:
	default:
		c.requestPublish()
	}
	if previous != nil && previous.generation != next.generation {
		next.upToDate = false
	}
	// Retries of a deletion have their own times: an event of what a retry has stored must not cause the next.
	if beginsDeletion := next.deleting && (previous == nil || !previous.deleting || previous.permission != next.permission); beginsDeletion ||
		!next.deleting && !next.upToDate {
		c.queue.Add(crd.Name)
	}
	if previous == nil || !slices.Equal(allNames(previous.names), allNames(next.names)) {
		c.requeueConflicting(next.group, crd.Name)
	}
}

func (c *Controller) record(name string) *record {
	c.lock.Lock()
	defer c.lock.Unlock()
	return c.records[name]
}

// keepDefinition takes over the definition of the previous record, which may be nil, if it is still right. It is after
// most status updates.
func (r *record) keepDefinition(previous *record) bool {
	if previous == nil || previous.definition == nil || previous.definition.Revision != r.revision ||
		previous.definition.Terminating != r.terminating || previous.established != r.established || !slices.Equal(allNames(previous.names), allNames(r.names)) {
		return false
	}
	r.definition = previous.definition
	return true
}

// define sets the definition. A status update does not change the revision since which it is in force.
func (r *record) define(builder *Builder, object runtime.Object, previous *record, logger logr.Logger) {
	crd, err := external(object)
	if err == nil {
		if !r.accepted && !r.established {
			crd.Status.AcceptedNames = crd.Spec.Names // objects that are deleted with it may have had these names
		}
		r.definition, err = builder.Definition(crd)
	}
	if err != nil {
		logger.Error(err, "Failed to serve a custom resource", "definition", r.revision)
		return
	}
	r.definition.Permission, r.definition.Terminating = r.permission, r.terminating
	if !r.established {
		r.definition.Versions = nil
	}
	if previous != nil && previous.definition != nil && previous.definition.Revision == r.revision {
		r.definition.Since = previous.definition.Since
	}
}

// describe returns the record of a definition.
func describe(crd *apiextensionsv1.CustomResourceDefinition, previous *record) *record {
	r := &record{
		group:       crd.Spec.Group,
		names:       crd.Status.AcceptedNames,
		accepted:    apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.NamesAccepted),
		deleting:    crd.DeletionTimestamp != nil,
		terminating: crd.DeletionTimestamp != nil || apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Terminating),
		generation:  crd.Generation,
		revision:    revisionOf(crd),
		established: apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established),
		permission:  permissionOf(crd, previous),
	}
	r.upToDate = r.accepted && r.established && slices.Equal(allNames(crd.Spec.Names), allNames(r.names))
	r.permission.observe(crd, r.established && !r.terminating)
	return r
}

// definable reports whether objects can have been stored, or can be soon.
func (r *record) definable() bool { return r.established || r.accepted || r.deleting }

// removeRecord drops a deleted definition, which releases its names.
func (c *Controller) removeRecord(key string) {
	c.lock.Lock()
	defer c.lock.Unlock()
	previous, ok := c.records[key]
	if !ok {
		return
	}
	delete(c.records, key)
	c.requestPublish()
	c.requeueConflicting(previous.group, key)
}

// requeueConflicting queues the definitions of a group whose names are not all accepted.
func (c *Controller) requeueConflicting(group, except string) {
	for name, r := range c.records {
		if r.group == group && name != except && !r.upToDate {
			c.queue.Add(name)
		}
	}
}

// observedAll is called after every restart of Follow.
func (c *Controller) observedAll() {
	closeOnce(c.known)
	c.lock.Lock()
	defer c.lock.Unlock()
	c.requestPublish()
}

// Known returns a channel that is closed when all definitions that existed at the start were observed. The controller
// changes no definition before.
func (c *Controller) Known() <-chan struct{} { return c.known }

// Synced returns a channel that is closed when all definitions that existed at the start were published.
func (c *Controller) Synced() <-chan struct{} { return c.served }

// closeOnce is not safe for concurrent use on one channel.
func closeOnce(channel chan struct{}) {
	select {
	case <-channel:
	default:
		close(channel)
	}
}

// requestPublish requests publishing. Requests during a publication are merged. The caller holds the lock.
func (c *Controller) requestPublish() {
	c.requested++
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

func (c *Controller) publishChanges(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.changed:
			c.publish()
		}
	}
}

// publish publishes all definitions in the order of their names.
func (c *Controller) publish() {
	definitions, requested := c.definitions()
	c.Publish(definitions)
	closeOnce(c.served)
	c.lock.Lock()
	defer c.lock.Unlock()
	c.inForce = requested
	if c.inForceChanged != nil {
		close(c.inForceChanged)
		c.inForceChanged = nil
	}
}

// definitions returns the definitions to publish, and the number of changes that they include.
func (c *Controller) definitions() (definitions []*resource.Definition, requested int64) {
	c.lock.Lock()
	defer c.lock.Unlock()
	for _, name := range slices.Sorted(maps.Keys(c.records)) {
		if r := c.records[name]; r.definition != nil {
			definitions = append(definitions, r.definition)
		}
	}
	return definitions, c.requested
}

// Await returns when this replica has published every change of a definition that was stored before the call.
func (c *Controller) Await(ctx context.Context) error {
	if err := c.AwaitFollowed(ctx); err != nil {
		return err
	}
	return c.awaitPublished(ctx)
}

// awaitPublished returns when every change that was observed before the call is published.
func (c *Controller) awaitPublished(ctx context.Context) error {
	c.lock.Lock()
	requested := c.requested
	c.lock.Unlock()
	for {
		changed := c.awaitInForce(requested)
		if changed == nil {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// awaitInForce returns nil if so many changes are published, else a channel that is closed when more are.
func (c *Controller) awaitInForce(requested int64) <-chan struct{} {
	c.lock.Lock()
	defer c.lock.Unlock()
	if c.inForce >= requested {
		return nil
	}
	if c.inForceChanged == nil {
		c.inForceChanged = make(chan struct{})
	}
	return c.inForceChanged
}

// work reconciles queued definitions one at a time.
func (c *Controller) work(ctx context.Context) {
	for {
		name, shutdown := c.queue.Get()
		if shutdown {
			return
		}
		if err := panics.Catch(func() error { return c.write(ctx, name) }); err != nil && ctx.Err() == nil {
			c.Logger.Error(err, "Failed to reconcile a CustomResourceDefinition", "name", name)
			c.queue.AddRateLimited(name)
		} else {
			c.queue.Forget(name)
		}
		c.queue.Done(name)
	}
}

func allNames(n apiextensionsv1.CustomResourceDefinitionNames) []string {
	return slices.Concat([]string{n.Plural, n.Singular, n.Kind, n.ListKind}, n.ShortNames, []string{""}, n.Categories)
}

// outline is external without schemas, which are most of a definition.
func outline(object runtime.Object) (*apiextensionsv1.CustomResourceDefinition, error) {
	internal, ok := object.(*apiextensions.CustomResourceDefinition)
	if !ok {
		return nil, fmt.Errorf("%T is not a CustomResourceDefinition", object)
	}
	reduced := *internal
	reduced.Spec.Validation = nil
	reduced.Spec.Versions = slices.Clone(internal.Spec.Versions)
	for i := range reduced.Spec.Versions {
		reduced.Spec.Versions[i].Schema = nil
	}
	return external(&reduced)
}

// external converts a CustomResourceDefinition from internal version. The result shares memory with it.
func external(object runtime.Object) (*apiextensionsv1.CustomResourceDefinition, error) {
	internal, ok := object.(*apiextensions.CustomResourceDefinition)
	if !ok {
		return nil, fmt.Errorf("%T is not a CustomResourceDefinition", object)
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := apiextensionsv1.Convert_apiextensions_CustomResourceDefinition_To_v1_CustomResourceDefinition(internal, crd, nil); err != nil {
		return nil, fmt.Errorf("convert CustomResourceDefinition %s: %w", internal.Name, err)
	}
	return crd, nil
}
