package admission

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apiserver/pkg/admission"
	auditapi "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"

	"quorate.dev/apiserver/request"
	"quorate.dev/apiserver/resource"
)

var (
	_ admission.Attributes          = interruptible{}
	_ admission.ReinvocationContext = &reinvocation{}
)

// Rules describes which writes the rules of a plugin's configurations may select. RuleIndex of package plugins
// implements it.
type Rules interface {
	// MaySelect reports whether a write of a resource or subresource may concern a configuration.
	MaySelect(operation string, resource schema.GroupResource, subresource string) bool
}

// Selecting returns the plugin, restricted to writes that the rules may select. Rules for an equivalent resource, such
// as another version, count too.
func (p Plugin) Selecting(rules Rules, catalog *resource.CatalogHolder) Plugin {
	p.Selector = selection{rules, catalog}
	return p
}

type selection struct {
	rules   Rules
	catalog *resource.CatalogHolder
}

// Selects implements Selector.
func (s selection) Selects(a *Attributes) bool {
	for _, d := range s.catalog.Current().Equivalent(a.Definition) {
		if s.rules.MaySelect(string(a.Operation), d.GroupResource(), a.Subresource) {
			return true
		}
	}
	return false
}

// Upstream adapts a plugin of k8s.io/apiserver. The plugin finds equivalent resources in the catalog.
func Upstream(name string, upstream admission.Interface, catalog *resource.CatalogHolder) Plugin {
	plugin := Plugin{Name: name}
	for _, operation := range []Operation{Create, Update, Delete, Connect} {
		if upstream.Handles(admission.Operation(operation)) {
			plugin.Operations = append(plugin.Operations, operation)
		}
	}
	if mutation, ok := upstream.(admission.MutationInterface); ok {
		plugin.Mutator = mutator{name, mutation, catalog}
	}
	if validation, ok := upstream.(admission.ValidationInterface); ok {
		plugin.Validator = validator{name, validation, catalog}
	}
	return plugin
}

type mutator struct {
	name     string
	upstream admission.MutationInterface
	catalog  *resource.CatalogHolder
}

func (m mutator) Admit(ctx context.Context, a *Attributes) (err error) {
	defer recoverPanic(ctx, m.name, &err)
	return m.upstream.Admit(ctx, interruptible{a, ctx}, interfaces{a.Definition.Scheme, m.catalog})
}

type validator struct {
	name     string
	upstream admission.ValidationInterface
	catalog  *resource.CatalogHolder
}

func (v validator) Validate(ctx context.Context, a *Attributes) (err error) {
	defer recoverPanic(ctx, v.name, &err)
	return v.upstream.Validate(ctx, interruptible{a, ctx}, interfaces{a.Definition.Scheme, v.catalog})
}

// interruptible passes Attributes to a plugin of upstream and makes its evaluation of expressions end with the context.
// Upstream's loop over policies and parameters does not check the context, but calls GetKind before each evaluation: a
// panic in GetKind is the only way to end the loop.
type interruptible struct {
	*Attributes
	ctx context.Context //nolint:containedctx // of one call
}

// GetKind returns the kind of the objects. It panics with request.ErrCPU if the plugin has exceeded its CPU time;
// recoverPanic converts the panic to the error.
func (i interruptible) GetKind() schema.GroupVersionKind {
	if errors.Is(context.Cause(i.ctx), request.ErrCPU) {
		panic(request.ErrCPU)
	}
	return i.Attributes.GetKind()
}

// recoverPanic rejects the write if the plugin has panicked, with the text that upstream has for a panic in a
// validating webhook. The json-patch library panics on some patches of webhooks and policies, such as a test operation
// on the whole object without a value.
func recoverPanic(ctx context.Context, plugin string, err *error) {
	switch cause := recover(); cause {
	case nil:
	case request.ErrCPU:
		*err = request.ErrCPU
	default:
		utilruntime.HandleErrorWithContext(ctx, nil, "Admission plugin panicked", "plugin", plugin, "cause", cause,
			"stack", string(debug.Stack()))
		*err = apierrors.NewInternalError(fmt.Errorf("%s has panicked: %v", plugin, cause))
	}
}

// GetName implements admission.Attributes of k8s.io/apiserver, like all following methods of Attributes.
func (a *Attributes) GetName() string { return a.Name }

// GetNamespace returns the namespace.
func (a *Attributes) GetNamespace() string { return a.Namespace }

// GetResource returns the resource in the version of the request.
func (a *Attributes) GetResource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: a.Definition.Group, Version: a.Version.Name, Resource: a.Definition.Plural}
}

// GetSubresource returns the subresource.
func (a *Attributes) GetSubresource() string { return a.Subresource }

// GetOperation returns the operation.
func (a *Attributes) GetOperation() admission.Operation { return admission.Operation(a.Operation) }

// GetOperationOptions returns the client's options.
func (a *Attributes) GetOperationOptions() runtime.Object { return a.Options }

// IsDryRun reports whether nothing will be stored.
func (a *Attributes) IsDryRun() bool { return a.DryRun }

// GetObject returns the object.
func (a *Attributes) GetObject() runtime.Object { return a.Object }

// GetOldObject returns the object that is replaced or deleted.
func (a *Attributes) GetOldObject() runtime.Object { return a.Old }

// GetKind returns the kind of the objects.
func (a *Attributes) GetKind() schema.GroupVersionKind { return a.Kind }

// GetUserInfo returns the user of the request.
func (a *Attributes) GetUserInfo() user.Info { return a.User }

// AddAnnotation adds an annotation to the audit event.
func (a *Attributes) AddAnnotation(key, value string) error {
	return a.AddAnnotationWithLevel(key, value, auditapi.LevelMetadata)
}

// AddAnnotationWithLevel adds an annotation to audit events of at least the level. It validates keys as upstream does,
// because webhooks choose them.
func (a *Attributes) AddAnnotationWithLevel(key, value string, level auditapi.Level) error {
	if strings.Count(key, "/") != 1 {
		return fmt.Errorf("annotation key %q needs a DNS subdomain and one slash before its name", key)
	}
	if issues := validation.IsQualifiedName(key); len(issues) > 0 {
		return fmt.Errorf("annotation key %q: %s", key, strings.Join(issues, ", "))
	}
	return a.annotations.add(key, annotation{value: value, level: level})
}

// GetReinvocationContext returns the values that plugins keep between the first run of the mutators and the second.
func (a *Attributes) GetReinvocationContext() admission.ReinvocationContext { return &a.reinvocation }

// audit copies the annotations to the audit event of the request, if it has one.
func (a *Attributes) audit(ctx context.Context) {
	a.annotations.mu.Lock()
	defer a.annotations.mu.Unlock()
	if len(a.annotations.byKey) == 0 {
		return
	}
	recorded := audit.AuditContextFrom(ctx)
	if recorded == nil {
		return
	}
	for key, annotation := range a.annotations.byKey {
		if !recorded.GetEventLevel().Less(annotation.level) {
			audit.AddAuditAnnotation(ctx, key, annotation.value)
		}
	}
}

type annotation struct {
	value string
	level auditapi.Level
}

// annotations has the audit annotations of one write. Invariant: once added, the value of a key does not change.
type annotations struct {
	mu    sync.Mutex
	byKey map[string]annotation
}

func (a *annotations) add(key string, added annotation) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if known, ok := a.byKey[key]; ok && known != added {
		return fmt.Errorf("annotation %q already has the value %q", key, known.value)
	}
	if a.byKey == nil {
		a.byKey = map[string]annotation{}
	}
	a.byKey[key] = added
	return nil
}

type reinvocation struct {
	again, wanted bool
	values        map[string]any
}

// IsReinvoke reports whether the mutators run for the second time.
func (r *reinvocation) IsReinvoke() bool { return r.again }

// SetIsReinvoke marks the start of the second run.
func (r *reinvocation) SetIsReinvoke() { r.again = true }

// ShouldReinvoke reports whether a plugin has requested a second run.
func (r *reinvocation) ShouldReinvoke() bool { return r.wanted }

// SetShouldReinvoke requests a second run of all mutators.
func (r *reinvocation) SetShouldReinvoke() { r.wanted = true }

// SetValue stores a plugin's value for the second run.
func (r *reinvocation) SetValue(plugin string, value any) {
	if r.values == nil {
		r.values = map[string]any{}
	}
	r.values[plugin] = value
}

// Value returns a plugin's value.
func (r *reinvocation) Value(plugin string) any { return r.values[plugin] }
