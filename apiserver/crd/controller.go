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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/resource"
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
	// Publish publishes the definitions of all served custom resources in the catalog.
	Publish func(definitions []*resource.Definition)
	// BuiltIn reports whether a resource is built in: deleting a CustomResourceDefinition of the same name must not
	// delete its objects.
	BuiltIn func(schema.GroupResource) bool
	// EstablishDelay is the delay between publishing a definition and its Established condition, in which other
	// replicas publish it too. Zero for a single replica.
	EstablishDelay time.Duration
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
}

// record is the controller's state of one CustomResourceDefinition.
type record struct {
	group      string
	names      apiextensionsv1.CustomResourceDefinitionNames // accepted
	upToDate   bool                                          // the stored status is up to date
	deleting   bool
	generation int64
	definition *resource.Definition // nil: not served
	published  bool                 // the definition is in this replica's catalog
}

// NewController returns a controller; Run runs it.
func NewController(options ControllerOptions) (*Controller, error) {
	builder, err := NewBuilder(options.Converters, options.Clock)
	if err != nil {
		return nil, err
	}
	return &Controller{
		ControllerOptions: options,
		builder:           builder,
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[string](5*time.Millisecond, 30*time.Second),
			workqueue.TypedRateLimitingQueueConfig[string]{Clock: options.Clock}),
		changed: make(chan struct{}, 1),
		known:   make(chan struct{}),
		served:  make(chan struct{}),
		records: map[string]*record{},
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
	crd, err := external(object)
	if err != nil {
		c.Logger.Error(err, "Failed to convert a CustomResourceDefinition", "name", key)
		return
	}
	next := c.describe(crd)
	c.lock.Lock()
	defer c.lock.Unlock()
	previous := c.records[crd.Name]
	c.records[crd.Name] = next
	keepRevision(previous, next)
	switch {
	case !sameDefinition(previous, next):
		c.requestPublish()
	case previous != nil:
		next.definition, next.published = previous.definition, previous.published
	}
	if previous != nil && previous.generation != next.generation {
		next.upToDate = false
	}
	if !next.upToDate || next.deleting {
		c.queue.Add(crd.Name)
	}
	if previous == nil || !slices.Equal(allNames(previous.names), allNames(next.names)) {
		c.requeueConflicting(next.group, crd.Name)
	}
}

// keepRevision preserves the revision at which the definition last changed. A status update changes the object but not
// the definition.
func keepRevision(previous, next *record) {
	if previous == nil || previous.definition == nil || next.definition == nil {
		return
	}
	if previous.definition.Revision == next.definition.Revision {
		next.definition.Since = previous.definition.Since
	}
}

// describe returns the record of a definition. It is served as soon as its names are accepted.
func (c *Controller) describe(crd *apiextensionsv1.CustomResourceDefinition) *record {
	r := &record{
		group:      crd.Spec.Group,
		names:      crd.Status.AcceptedNames,
		deleting:   crd.DeletionTimestamp != nil,
		generation: crd.Generation,
	}
	accepted := apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.NamesAccepted)
	isEstablished := apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established)
	r.upToDate = accepted && isEstablished && slices.Equal(allNames(crd.Spec.Names), allNames(r.names))
	if !isEstablished && !accepted {
		return r
	}
	definition, err := c.builder.Definition(crd)
	if err != nil {
		c.Logger.Error(err, "Failed to serve a custom resource", "name", crd.Name)
		return r
	}
	r.definition = definition
	return r
}

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
	c.requestPublish()
}

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

// requestPublish requests publishing. Requests during a publication are merged.
func (c *Controller) requestPublish() {
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

// publish publishes all definitions in the order of their names and queues those to be established.
func (c *Controller) publish() {
	definitions := c.definitions()
	c.Publish(definitions)
	closeOnce(c.served)
	inForce := make(map[*resource.Definition]bool, len(definitions))
	for _, d := range definitions {
		inForce[d] = true
	}
	c.lock.Lock()
	defer c.lock.Unlock()
	for name, r := range c.records {
		if r.published || !inForce[r.definition] {
			continue
		}
		r.published = true
		if !r.upToDate {
			c.queue.AddAfter(name, c.EstablishDelay)
		}
	}
}

func (c *Controller) definitions() []*resource.Definition {
	c.lock.Lock()
	defer c.lock.Unlock()
	var definitions []*resource.Definition
	for _, name := range slices.Sorted(maps.Keys(c.records)) {
		if r := c.records[name]; r.definition != nil {
			definitions = append(definitions, r.definition)
		}
	}
	return definitions
}

// work reconciles queued definitions one at a time.
func (c *Controller) work(ctx context.Context) {
	for {
		name, shutdown := c.queue.Get()
		if shutdown {
			return
		}
		if err := c.write(ctx, name); err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
			c.Logger.Error(err, "Failed to reconcile a CustomResourceDefinition", "name", name)
			c.queue.AddRateLimited(name)
		} else {
			c.queue.Forget(name)
		}
		c.queue.Done(name)
	}
}

func sameDefinition(a, b *record) bool {
	if a == nil || a.definition == nil || b.definition == nil {
		return (a == nil || a.definition == nil) && b.definition == nil
	}
	return a.definition.Revision == b.definition.Revision && a.definition.Terminating == b.definition.Terminating &&
		slices.Equal(allNames(a.names), allNames(b.names))
}

func allNames(n apiextensionsv1.CustomResourceDefinitionNames) []string {
	return slices.Concat([]string{n.Plural, n.Singular, n.Kind, n.ListKind}, n.ShortNames, []string{""}, n.Categories)
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
