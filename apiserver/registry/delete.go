package registry

import (
	"bytes"
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"

	"quorate.dev/apiserver/admission"
	"quorate.dev/apiserver/registry/strategy"
	"quorate.dev/apiserver/resource"
)

// Delete deletes the target's object. An object with finalizers or a grace period is only marked: it gets a deletion
// timestamp and stays until its finalizers are removed or it is deleted with a grace period of zero. options must not
// be nil; Delete does not change them.
//
// Delete mirrors kube-apiserver's Store.Delete, in whose terms run is rest.BeforeDelete followed by
// updateForGracefulDeletionAndFinalizers. Admission sees the object of each attempt, as deleteValidation does there.
func (r *Registry) Delete(
	ctx context.Context, t resource.Target, options *metav1.DeleteOptions, write WriteOptions,
) (*Result, error) {
	ctx = t.WithNamespace(ctx)
	if guard, ok := t.Endpoint.Delete.(resource.DeletionGuard); ok && !write.Collection {
		if err := guard.CheckDeletion(t.Name); err != nil {
			return nil, err
		}
	}
	result, err := r.retry(ctx, t, write.DryRun, &deletion{registry: r, target: t, requested: options, write: write})
	if err != nil && r.deletesUnreadable {
		return nil, r.deleteError(ctx, t, err)
	}
	return result, err
}

// deletion is a DELETE of one object. The fields below marked belong to the latest attempt.
type deletion struct {
	registry  *Registry
	target    resource.Target
	requested *metav1.DeleteOptions // the client's; read-only
	write     WriteOptions
	own       ownWrite
	// marked is the result of an attempt that marked the object but then could not remove it. The deletion then
	// succeeds even if a concurrent request, for example of the kubelet, removes the object first (ignoreNotFound of
	// Store.Delete).
	marked *Result

	current    state
	options    *metav1.DeleteOptions // a copy: rest.BeforeDelete and strategies change it
	attributes *admission.Attributes
}

// attempt implements writer.
func (d *deletion) attempt(ctx context.Context, current state) (*Result, error) {
	if !current.found {
		if d.marked == nil {
			return nil, apierrors.NewNotFound(d.target.GroupResource(), d.target.Name)
		}
		d.marked.Outcome = Finalized
		return d.marked, nil
	}
	object, err := load(ctx, d.target, current)
	if err != nil {
		return nil, err
	}
	d.current, d.options = current, d.requested.DeepCopy()
	d.write.Options = d.options
	d.attributes = attributes(ctx, d.target, d.write, &admission.Attributes{Operation: admission.Delete, Old: object})
	if err := d.registry.admit(ctx, d.attributes); err != nil {
		return nil, err
	}
	if terminator, ok := d.target.Endpoint.Delete.(resource.Terminator); ok {
		return d.terminate(ctx, terminator, object)
	}
	return d.run(ctx, object)
}

// rewrite implements writer. It writes nothing: the object waits for its finalizers, and their removal writes the
// object with the current key.
func (d *deletion) rewrite(_ context.Context, _ state, result *Result) (*Result, error) {
	return result, nil
}

// terminate deletes an object whose content is removed first, such as a namespace (kube-apiserver's REST.Delete of
// namespaces). The first request only marks the object; later requests return it unchanged while finalizers in its spec
// are pending, and delete it like any other object once they are gone.
func (d *deletion) terminate(
	ctx context.Context, terminator resource.Terminator, object runtime.Object,
) (*Result, error) {
	if err := d.checkPreconditions(terminator, object); err != nil {
		return nil, err
	}
	accessor, err := meta.Accessor(object)
	if err != nil {
		return nil, err
	}
	first := accessor.GetDeletionTimestamp() == nil
	pending := terminator.Terminate(object, d.options)
	if first {
		return d.mark(ctx, object)
	}
	if pending {
		return d.unchanged(object), nil
	}
	return d.run(ctx, object)
}

// unchanged returns the result of a deletion that writes nothing, because an earlier deletion is pending.
func (d *deletion) unchanged(object runtime.Object) *Result {
	return &Result{Object: object, Stored: d.current.data, Revision: d.current.revision, DryRun: d.write.DryRun}
}

// checkPreconditions checks the preconditions of a deletion that only marks the object. The errors begin with the text
// of the terminator. In all other deletions, rest.BeforeDelete checks the preconditions and returns errors with other
// texts.
func (d *deletion) checkPreconditions(terminator resource.Terminator, object runtime.Object) error {
	if d.options.Preconditions == nil {
		return nil
	}
	accessor, err := meta.Accessor(object)
	if err != nil {
		return err
	}
	conflict := func(field string, expected, actual any) error {
		return apierrors.NewConflict(d.target.GroupResource(), d.target.Name, fmt.Errorf(
			"%s: %s in precondition: %v, %s in object meta: %v",
			terminator.PreconditionFailed(), field, expected, field, actual))
	}
	expected := d.options.Preconditions
	if expected.UID != nil && *expected.UID != accessor.GetUID() {
		return conflict("UID", *expected.UID, accessor.GetUID())
	}
	if expected.ResourceVersion != nil && *expected.ResourceVersion != accessor.GetResourceVersion() {
		return conflict("ResourceVersion", *expected.ResourceVersion, accessor.GetResourceVersion())
	}
	return nil
}

// run removes an object without finalizers and grace period, and marks any other object. object is a copy that
// rest.BeforeDelete changes: it sets the deletion timestamp of kinds with grace periods, and reports with pending that
// a running grace period is not shortened.
//
//	finalizers  grace period      effect
//	yes         not supported     mark; MarkDeleting sets the timestamp
//	yes         any               mark
//	no          above zero        mark; the kubelet deletes the object later
//	no          zero              mark, then remove
//	no          not supported     remove
//
// The first column refers to the finalizers after CollectionFinalizers has applied the propagation policy.
func (d *deletion) run(ctx context.Context, object runtime.Object) (*Result, error) {
	graceful, pending, err := rest.BeforeDelete(d.target.Endpoint.Delete, ctx, object, d.options)
	if err != nil {
		return nil, err
	}
	if pending {
		return d.unchanged(object), nil
	}
	accessor, err := meta.Accessor(object)
	if err != nil {
		return nil, err
	}
	hadFinalizers := len(accessor.GetFinalizers()) > 0
	if !d.registry.noGarbageCollector {
		accessor.SetFinalizers(strategy.CollectionFinalizers(ctx, d.target.Endpoint.Delete,
			accessor.GetFinalizers(), d.options))
	}
	hasFinalizers := len(accessor.GetFinalizers()) > 0
	switch {
	case d.write.DryRun && hadFinalizers && !hasFinalizers && !graceful:
		return d.empty(ctx)
	case hasFinalizers && !graceful:
		strategy.MarkDeleting(accessor, metav1.NewTime(d.registry.clock.Now()))
		return d.mark(ctx, object)
	case hasFinalizers, graceful && *d.options.GracePeriodSeconds > 0:
		return d.mark(ctx, object)
	case graceful:
		return d.markAndRemove(ctx, object)
	}
	return d.remove(ctx, object)
}

// markAndRemove deletes an object whose grace period is zero. As with kube-apiserver, watchers see it marked before
// they see it deleted.
func (d *deletion) markAndRemove(ctx context.Context, object runtime.Object) (*Result, error) {
	marked, err := d.mark(ctx, object)
	if err != nil {
		return nil, err
	}
	d.current.data, d.current.revision = marked.Stored, marked.Revision
	removed, err := d.remove(ctx, object)
	if err != nil {
		d.marked = marked
		return nil, err
	}
	return removed, nil
}

// mark stores the object with its deletion timestamp, unless it is stored in that form already. As in kube-apiserver,
// an object with a TTL loses its TTL and waits for its finalizers.
func (d *deletion) mark(ctx context.Context, object runtime.Object) (*Result, error) {
	if !d.write.DryRun {
		removeSelfLink(object)
	}
	data, err := encode(ctx, d.target, object)
	if err != nil {
		return nil, err
	}
	result := &Result{
		Outcome: Marked, Object: object, Stored: data, Revision: d.current.revision, DryRun: d.write.DryRun,
	}
	if bytes.Equal(data, d.current.data) && (!d.current.stale || d.write.DryRun) {
		result.Outcome = StillMarked
		return result, nil
	}
	if d.write.DryRun {
		return result, nil
	}
	if err = d.own.limit(ctx, d.registry, d.target, object); err != nil {
		return nil, err
	}
	result.Revision, err = d.registry.storageOf(d.target.Match).Store.Update(ctx, d.target.Path(),
		d.current.revision, data, 0)
	if err != nil {
		return nil, err
	}
	setRevision(object, result.Revision)
	return result, nil
}

// remove deletes the object from storage, on the condition that it still has the revision of d.current, and releases
// its reservations. The object gets the revision of the deletion, which the event of the deletion has too.
func (d *deletion) remove(ctx context.Context, object runtime.Object) (*Result, error) {
	result := d.unchanged(object)
	result.Outcome = Deleted
	if d.write.DryRun {
		return result, nil
	}
	if err := d.own.limit(ctx, d.registry, d.target, object); err != nil {
		return nil, err
	}
	revision, err := d.registry.storageOf(d.target.Match).Store.Delete(ctx, d.target.Path(), d.current.revision)
	if err != nil {
		return nil, err
	}
	result.Revision = revision
	setRevision(object, revision)
	d.registry.admission.Commit(ctx, d.attributes)
	return result, nil
}

// empty returns the result that kube-apiserver has for the dry run of a deletion whose propagation policy removes the
// last finalizer: an object of the kind without content, which its dry-run storage has not filled.
func (d *deletion) empty(ctx context.Context) (*Result, error) {
	object := d.target.Version.Codec.New()
	data, err := d.target.Version.Codec.Store(ctx, object)
	if err != nil {
		return nil, internalError(err)
	}
	return &Result{Outcome: DeletedEmpty, Object: object, Stored: data, DryRun: true}, nil
}
