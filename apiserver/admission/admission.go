package admission

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"

	"quorate.dev/apiserver/resource"
)

// Operation is the kind of write, with the values of AdmissionReview's request.operation.
type Operation string

const (
	Create Operation = "CREATE"
	Update Operation = "UPDATE"
	Delete Operation = "DELETE"
	// Connect opens a stream or proxies a request; Object holds its options.
	Connect Operation = "CONNECT"
)

// Attributes describe one write. Object is nil when deleting, Old when creating.
type Attributes struct {
	Operation   Operation
	Definition  *resource.Definition
	Version     *resource.Version
	Subresource string
	// Kind is the kind of Object, or of Old if Object is nil. In a write of a subresource such as Scale, it is the
	// subresource's kind.
	Kind      schema.GroupVersionKind
	Namespace string
	// Name is empty until the server has generated it, and for deletecollection.
	Name    string
	Object  runtime.Object // internal version; a Mutator may change it
	Old     runtime.Object // internal version; read-only
	Options runtime.Object // such as CreateOptions; nil if the operation has none
	DryRun  bool
	User    user.Info
	// Internal marks the server's own writes; only plugins with Internal set, and the reservers, see them.
	Internal bool
	// NamespaceRevision is the revision at which the namespace of a creation was active. NamespaceLifecycle sets it, and
	// the registry raises it after the namespace has changed. 0 means that the creation does not depend on the namespace.
	NamespaceRevision int64

	annotations  annotations
	reinvocation reinvocation
}

// Mutator may change attributes.Object, or reject the write with an API status error.
type Mutator interface {
	Admit(ctx context.Context, attributes *Attributes) error
}

// Validator may reject the write with an API status error. It sees the object in its final form, which will be stored,
// and must not change it.
type Validator interface {
	Validate(ctx context.Context, attributes *Attributes) error
}

// Plugin is one entry in the order of admission.
type Plugin struct {
	// Name is kube-apiserver's name of the plugin, for flags and metrics. Checks that are not plugins in kube-apiserver
	// have no name and no metrics.
	Name string
	// Operations has the operations for which the plugin is called.
	Operations []Operation
	Mutator    Mutator   // may be nil
	Validator  Validator // may be nil
	// Selector restricts the plugin to the writes that it selects; nil: it is called for all writes.
	Selector Selector
	// Internal is set if the plugin is also called for the server's own writes (Attributes.Internal).
	Internal bool
}

// handles reports whether the plugin takes part in a step of a write, apart from its selector.
func (p *Plugin) handles(a *Attributes, step string) bool {
	takesPart := step == stepAdmit && p.Mutator != nil || step == stepValidate && p.Validator != nil
	return takesPart && (p.Internal || !a.Internal) && slices.Contains(p.Operations, a.Operation)
}

func (p *Plugin) selects(a *Attributes) bool { return p.Selector == nil || p.Selector.Selects(a) }

// Selector decides which writes a plugin is called for.
type Selector interface {
	Selects(attributes *Attributes) bool
}

// Reserver allocates resources outside the object that a write needs, such as an IP address. The package documentation
// describes the order of its calls.
type Reserver interface {
	// Allocates reports whether Reserve allocates for writes of a resource. An update of such a resource must start
	// from the stored object rather than from the watch cache: Reserve would allocate for a stale object, and release
	// and allocate again when the compare-and-swap fails.
	Allocates(of schema.GroupResource) bool
	// Reserve changes attributes.Object, whose name is final, or rejects the write. In a dry run it allocates nothing.
	Reserve(ctx context.Context, attributes *Attributes) error
	// Rollback releases the allocations of Reserve after the write has failed.
	Rollback(ctx context.Context, attributes *Attributes)
	// Commit is called after an update or a deletion has been stored. It releases the allocations of the old object
	// that the new object does not use.
	Commit(ctx context.Context, attributes *Attributes)
}

// Chain runs the plugins and reservers of one server. Its fields must not change while requests are served.
type Chain struct {
	Plugins   []Plugin
	Reservers []Reserver
	Metrics   *Metrics // nil: none
}

// Admit runs all mutators. If a webhook or policy with reinvocationPolicy IfNeeded requests it because a later plugin
// has changed the object, Admit runs all mutators a second time.
func (c *Chain) Admit(ctx context.Context, attributes *Attributes) error {
	managed := managedFieldsOf(attributes)
	err := c.mutate(ctx, attributes)
	if err == nil && attributes.reinvocation.ShouldReinvoke() {
		attributes.reinvocation.SetIsReinvoke()
		err = c.mutate(ctx, attributes)
	}
	if err == nil {
		managed.restore(ctx)
	}
	return err
}

func (c *Chain) mutate(ctx context.Context, attributes *Attributes) error {
	return c.run(ctx, attributes, stepAdmit, func(p *Plugin) error { return p.Mutator.Admit(ctx, attributes) })
}

// Validate runs the validators.
func (c *Chain) Validate(ctx context.Context, attributes *Attributes) error {
	return c.run(ctx, attributes, stepValidate, func(p *Plugin) error { return p.Validator.Validate(ctx, attributes) })
}

// run calls the plugins in order until one rejects the write. A plugin that does not select the write is counted in the
// metrics too, because kube-apiserver calls it.
func (c *Chain) run(ctx context.Context, attributes *Attributes, step string, call func(*Plugin) error) (err error) {
	started := c.Metrics.now()
	before := started
	for i := range c.Plugins {
		plugin := &c.Plugins[i]
		if !plugin.handles(attributes, step) {
			continue
		}
		if !plugin.selects(attributes) {
			c.Metrics.plugin(plugin.Name, step, attributes.Operation, false, 0)
			continue
		}
		err = call(plugin)
		now := c.Metrics.now()
		c.Metrics.plugin(plugin.Name, step, attributes.Operation, err != nil, now.Sub(before))
		if before = now; err != nil {
			break
		}
	}
	if !attributes.Internal {
		c.Metrics.step(step, attributes.Operation, err != nil, c.Metrics.now().Sub(started))
		attributes.audit(ctx)
	}
	return err
}

// Allocates reports whether a reserver allocates for writes of a resource.
func (c *Chain) Allocates(of schema.GroupResource) bool {
	return slices.ContainsFunc(c.Reservers, func(reserver Reserver) bool { return reserver.Allocates(of) })
}

// Reserve runs the reservers. When one rejects the write, the reservers before it are rolled back.
func (c *Chain) Reserve(ctx context.Context, attributes *Attributes) error {
	for i, reserver := range c.Reservers {
		if err := reserver.Reserve(ctx, attributes); err != nil {
			rollback(ctx, c.Reservers[:i], attributes)
			return err
		}
	}
	return nil
}

// Rollback rolls all reservers back, in reverse order, after a write has failed.
func (c *Chain) Rollback(ctx context.Context, attributes *Attributes) {
	rollback(ctx, c.Reservers, attributes)
}

// Commit notifies the reservers that the write is stored.
func (c *Chain) Commit(ctx context.Context, attributes *Attributes) {
	for _, reserver := range c.Reservers {
		reserver.Commit(ctx, attributes)
	}
}

func rollback(ctx context.Context, reservers []Reserver, attributes *Attributes) {
	for _, reserver := range slices.Backward(reservers) {
		reserver.Rollback(ctx, attributes)
	}
}
