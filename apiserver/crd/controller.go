package crd

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
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

// Follow watches a resource until the context ends. It calls handle for every existing object, then synced once, and
// then handle for every changed object; a nil object means that the object was deleted. The calls come from one
// goroutine, one at a time, and handle owns the object.
type Follow func(
	ctx context.Context, resource schema.GroupResource, handle func(key string, object runtime.Object), synced func(),
) error

// ControllerOptions configure a Controller.
type ControllerOptions struct {
	Objects resource.Client
	Follow  Follow
	// AwaitFollowed returns when Follow has called handle for every change that was stored before the call.
	AwaitFollowed func(ctx context.Context) error
	// Publish publishes the definitions of all served custom resources in the catalog.
	Publish func(definitions []*resource.Definition)
	// BuiltIn reports whether a resource is built in. When a CustomResourceDefinition with the name of a built-in
	// resource is deleted, the objects of that resource must not be deleted.
	BuiltIn func(schema.GroupResource) bool
	// Idle drops the schemas, validators and type converters of definitions that have not been used for some time.
	Idle *lazy.Set
	// Converters calls conversion webhooks.
	Converters Converters
	Clock      clock.WithTicker
	Logger     logr.Logger
}

// Controller reconciles CustomResourceDefinitions: it sets their conditions, publishes their definitions, and deletes
// the custom resources of deleted definitions. Every replica runs a Controller. All replicas make the same decisions,
// because these depend only on stored state.
type Controller struct {
	ControllerOptions
	builder *Builder
	queue   workqueue.TypedRateLimitingInterface[string] // names of definitions whose status may have to be written
	changed chan struct{}                                // capacity 1; published definitions are outdated
	known   chan struct{}                                // closed when all existing definitions were observed
	served  chan struct{}                                // closed when the existing definitions were published

	// lock guards the fields below, except checked. It is not held while anything is built, published or written.
	lock    sync.Mutex
	records map[string]*record // by name of the definition
	// requested counts the changes that must be published. inForce is the value of requested that the last publication
	// included. Invariant: inForce <= requested.
	requested, inForce int64
	inForceChanged     chan struct{} // closed when inForce increases; nil: no caller waits for it

	checked map[string]checkedSchemas // by name; used by work only
}

// checkedSchemas caches the condition NonStructuralSchema of a definition at a revision. problem is nil if the schemas
// are structural.
type checkedSchemas struct {
	revision string
	problem  *condition
}

// record is the controller's state of one CustomResourceDefinition, as it was last observed. It does not change once it
// is in Controller.records.
type record struct {
	group       string
	names       apiextensionsv1.CustomResourceDefinitionNames // names that this definition owns (status.acceptedNames)
	accepted    bool                                          // all requested names are accepted
	upToDate    bool                                          // the stored status needs no write
	deleting    bool                                          // the definition has a deletion timestamp
	generation  int64
	revision    string // resource.Definition.Revision of the definition
	terminating bool   // deleting, or the condition Terminating is true
	established bool
	permission  *permission
	// definition has served versions only if the condition Established is stored. It is nil if the names are not
	// accepted, or if building the definition failed.
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

// Run reconciles until the context ends. It runs three goroutines: its own observes definitions, one writes conditions,
// and one publishes, so that a slow write to etcd does not delay what clients are served. A panic of the latter two
// ends Run.
func (c *Controller) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	workers, ctx := errgroup.WithContext(ctx)
	for _, work := range []func(context.Context){c.publishChanges, c.work} {
		workers.Go(func() error {
			return panics.Catch(func() error {
				c.whenKnown(ctx, work)
				return nil
			})
		})
	}
	defer context.AfterFunc(ctx, c.queue.ShutDown)()
	err := c.Follow(ctx, Resource, c.observe, c.observedAll)
	cancel()
	c.queue.ShutDown()
	if panicked := workers.Wait(); panicked != nil {
		return panicked
	}
	if err != nil {
		return fmt.Errorf("follow CustomResourceDefinitions: %w", err)
	}
	return nil
}

// whenKnown calls do when all existing definitions have been observed. Earlier, names could be accepted that another
// definition owns, and an incomplete set of definitions could be published.
func (c *Controller) whenKnown(ctx context.Context, do func(context.Context)) {
	select {
	case <-ctx.Done():
	case <-c.known:
		do(ctx)
	}
}

// observe stores the state of a definition. The only caller is the goroutine of Follow, so that nothing changes between
// reading the previous record and storing the next one. The definition is built outside of the lock, without compiling
// a schema. observe never waits for storage.
//
// Any change of names may resolve a conflict of other definitions of the group, which are queued again.
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
	// work schedules the retries of a deletion. They write the status; the events of these writes must not queue the
	// definition again.
	continues := previous != nil && previous.deleting && previous.permission == next.permission
	if next.deleting && !continues || !next.deleting && !next.upToDate {
		c.queue.Add(crd.Name)
	}
	if previous == nil || !slices.Equal(allNames(previous.names), allNames(next.names)) {
		c.requeueConflicting(next.group, crd.Name)
	}
}

// record returns the record of a definition, nil if it has none.
func (c *Controller) record(name string) *record {
	c.lock.Lock()
	defer c.lock.Unlock()
	return c.records[name]
}

// keepDefinition reuses the definition of the previous record if nothing that it depends on has changed, as is the case
// after most status updates. It reports whether it did. previous may be nil. A definition that is kept is the same
// pointer, by which the catalog, the watch cache and discovery recognize that nothing has changed.
func (r *record) keepDefinition(previous *record) bool {
	if previous == nil || previous.definition == nil || previous.definition.Revision != r.revision ||
		previous.definition.Terminating != r.terminating || previous.established != r.established ||
		!slices.Equal(allNames(previous.names), allNames(r.names)) {
		return false
	}
	r.definition = previous.definition
	return true
}

// define builds the definition. If only the status has changed, the definition keeps the revision since which it is in
// force (Since), so that watches of clients do not expire. If it cannot be built, the definition stays nil: the
// resource is not served, and Established is not set.
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

// describe returns the record of a definition, without resource.Definition. crd is an outline: it has no schemas. The
// permission is updated here, before the new catalog is published: it is shared with the former definition, whose
// requests then depend on the latest revision too.
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

// definable reports whether custom resources of the definition may be stored, or may be stored soon.
func (r *record) definable() bool { return r.established || r.accepted || r.deleting }

// removeRecord drops the record of a deleted definition, and releases the names that it has accepted.
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

// requeueConflicting queues the definitions of a group whose names are not all accepted (requeueAllOtherGroupCRDs of
// NamingConditionController). The caller holds the lock.
func (c *Controller) requeueConflicting(group, except string) {
	for name, r := range c.records {
		if r.group == group && name != except && !r.upToDate {
			c.queue.Add(name)
		}
	}
}

// observedAll is called when Follow has observed all existing definitions, also after each restart of Follow. It
// requests a publication even if there are no definitions, because Synced must become true.
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

// closeOnce closes the channel if it is open. It must not be called concurrently for the same channel.
func closeOnce(channel chan struct{}) {
	select {
	case <-channel:
	default:
		close(channel)
	}
}

// requestPublish wakes the goroutine that publishes. Changes during a publication are merged into the next one. The
// caller holds the lock.
func (c *Controller) requestPublish() {
	c.requested++
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// publishChanges publishes after each request until ctx ends. One publication takes time proportional to the number of
// all definitions, so that a burst of changes, such as the installation of 100 definitions, must not cause one for
// each.
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

// publish publishes all definitions in the order of their names. inForce is set after Publish has returned, so that a
// request that Await releases finds the definitions in the catalog.
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

// awaitInForce returns nil if inForce has reached requested, else a channel that is closed when inForce increases.
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

// work reconciles queued definitions one at a time, so that definitions that claim the same name are decided one after
// the other within a replica. Two replicas may accept the same name for two definitions at the same time; as with
// several kube-apiservers, both definitions then keep it.
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

// allNames returns the names as one list, for comparisons. The empty string separates short names from categories.
func allNames(n apiextensionsv1.CustomResourceDefinitionNames) []string {
	return slices.Concat([]string{n.Plural, n.Singular, n.Kind, n.ListKind}, n.ShortNames, []string{""}, n.Categories)
}

// outline returns a CustomResourceDefinition like external, but without the schemas, which are the largest part of most
// definitions.
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

// external converts a CustomResourceDefinition from the internal version to v1, in which this package works. The result
// shares memory with its argument, which must not be changed afterwards.
func external(object runtime.Object) (*apiextensionsv1.CustomResourceDefinition, error) {
	internal, ok := object.(*apiextensions.CustomResourceDefinition)
	if !ok {
		return nil, fmt.Errorf("%T is not a CustomResourceDefinition", object)
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := apiextensionsv1.Convert_apiextensions_CustomResourceDefinition_To_v1_CustomResourceDefinition(internal,
		crd, nil); err != nil {
		return nil, fmt.Errorf("convert CustomResourceDefinition %s: %w", internal.Name, err)
	}
	return crd, nil
}
