package registry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"

	"quorate.dev/apiserver/admission"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/storage"
)

// Delete deletes the target's object, or begins to: an object with finalizers or a grace period is marked and
// stays until others are done with it.
func (r *Registry) Delete(ctx context.Context, t Target, options *metav1.DeleteOptions, write WriteOptions) (*Result, error) {
	ctx = t.context(ctx)
	if guard, ok := t.Endpoint.Delete.(resource.DeletionGuard); ok && !write.Collection {
		if err := guard.CheckDeletion(t.Name); err != nil {
			return nil, err
		}
	}
	current, err := r.stateFor(ctx, t, write.DryRun)
	if err != nil {
		return nil, status(err, t)
	}
	var marked *deleteResult
	for {
		switch {
		case !current.found && marked != nil: // somebody else was faster to remove what is marked, which is as well
			marked.Deleted = true
			return &marked.Result, nil
		case !current.found:
			return nil, apierrors.NewNotFound(t.GroupResource(), t.Name)
		}
		result, err := r.deleteFrom(ctx, t, current, options.DeepCopy(), write)
		if err != nil && result != nil {
			marked = result
		}
		var conflict *storage.ConflictError
		switch {
		case err == nil && (result.written || current.fresh):
			return &result.Result, nil
		case errors.As(err, &conflict):
			current = conflictState(conflict)
		case current.fresh:
			return nil, status(err, t)
		default:
			if current, err = r.storedState(ctx, t); err != nil {
				return nil, status(err, t)
			}
		}
		if ctx.Err() != nil {
			return nil, status(ctx.Err(), t)
		}
	}
}

// deleteResult is a Result and whether storage has taken it; if not, the object was found to be as it should be, which it
// may not be any more if the state was old.
type deleteResult struct {
	Result
	written bool
}

// deleteFrom makes one attempt from one state. A result beside an error is what has been marked to be removed at once.
func (r *Registry) deleteFrom(ctx context.Context, t Target, current state, options *metav1.DeleteOptions, write WriteOptions) (*deleteResult, error) {
	object, err := load(t, current)
	if err != nil {
		return nil, err
	}
	write.Options = options
	attributes := r.attributes(ctx, t, admission.Delete, nil, object, write)
	if err := r.admit(ctx, attributes); err != nil {
		return nil, err
	}
	d := deletion{registry: r, target: t, current: current, options: options, dryRun: write.DryRun, attributes: attributes}
	if terminator, ok := t.Endpoint.Delete.(resource.Terminator); ok {
		return d.terminate(ctx, terminator, object)
	}
	return d.run(ctx, object)
}

// deletion is one attempt to delete one state of an object.
type deletion struct {
	registry   *Registry
	target     Target
	current    state
	options    *metav1.DeleteOptions
	dryRun     bool
	attributes *admission.Attributes
}

// terminate deletes an object that others finish off.
func (d *deletion) terminate(ctx context.Context, terminator resource.Terminator, object runtime.Object) (*deleteResult, error) {
	if err := d.checkPreconditions(object); err != nil {
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

// unchanged is the result of a deletion that is already under way.
func (d *deletion) unchanged(object runtime.Object) *deleteResult {
	return &deleteResult{Result: Result{Object: object, Stored: d.current.data, Revision: d.current.revision}}
}

func (d *deletion) checkPreconditions(object runtime.Object) error {
	if d.options.Preconditions == nil {
		return nil
	}
	accessor, err := meta.Accessor(object)
	if err != nil {
		return err
	}
	conflict := func(what string, wanted, actual any) error {
		return apierrors.NewConflict(d.target.GroupResource(), d.target.Name, fmt.Errorf(
			"Precondition failed: %s in precondition: %v, %s in object meta: %v", what, wanted, what, actual))
	}
	wanted := d.options.Preconditions
	if wanted.UID != nil && *wanted.UID != accessor.GetUID() {
		return conflict("UID", *wanted.UID, accessor.GetUID())
	}
	if wanted.ResourceVersion != nil && *wanted.ResourceVersion != accessor.GetResourceVersion() {
		return conflict("ResourceVersion", *wanted.ResourceVersion, accessor.GetResourceVersion())
	}
	return nil
}

// run deletes an object, or marks it where it has to wait.
func (d *deletion) run(ctx context.Context, object runtime.Object) (*deleteResult, error) {
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
	waited := len(accessor.GetFinalizers()) > 0
	accessor.SetFinalizers(collectionFinalizers(ctx, d.target.Endpoint.Delete, accessor.GetFinalizers(), d.options))
	waits := len(accessor.GetFinalizers()) > 0
	switch {
	case d.dryRun && waited && !waits && !graceful:
		return d.blank()
	case waits && !graceful:
		markDeleting(accessor, metav1.NewTime(d.registry.clock.Now()))
		return d.mark(ctx, object)
	case waits, graceful && *d.options.GracePeriodSeconds > 0:
		return d.mark(ctx, object)
	case graceful:
		// Clients that watch see the object marked before they see it gone.
		marked, err := d.mark(ctx, object)
		if err != nil {
			return nil, err
		}
		d.current.data, d.current.revision = marked.Stored, marked.Revision
		removed, err := d.remove(ctx, object)
		if err != nil {
			return marked, err
		}
		return removed, nil
	}
	return d.remove(ctx, object)
}

// mark stores the object as one that is being deleted, unless it is already. As in kube-apiserver, one that would have
// expired by itself waits for its finalizers from now on.
func (d *deletion) mark(ctx context.Context, object runtime.Object) (*deleteResult, error) {
	if !d.dryRun {
		removeLink(object)
	}
	data, err := encode(d.target, object)
	if err != nil {
		return nil, err
	}
	result := &deleteResult{Result: Result{
		Object: object, Stored: data, Revision: d.current.revision, Rehearsed: d.dryRun, Undecorated: true,
	}}
	if d.dryRun || bytes.Equal(data, d.current.data) {
		return result, nil
	}
	result.Revision, err = d.registry.store.Update(ctx, d.target.path(), d.current.revision, data, 0)
	if err != nil {
		return nil, err
	}
	result.written = true
	setRevision(object, result.Revision)
	return result, nil
}

// remove takes the object out of storage.
func (d *deletion) remove(ctx context.Context, object runtime.Object) (*deleteResult, error) {
	result := d.unchanged(object)
	result.Deleted, result.Rehearsed = true, d.dryRun
	if d.dryRun {
		return result, nil
	}
	revision, err := d.registry.store.Delete(ctx, d.target.path(), d.current.revision)
	if err != nil {
		return nil, err
	}
	result.Revision, result.written = revision, true
	setRevision(object, revision)
	d.registry.admission.Commit(ctx, d.attributes)
	return result, nil
}

// blank is what kube-apiserver answers to the rehearsal of a deletion that takes away the last finalizer: an object of the
// kind with nothing in it.
func (d *deletion) blank() (*deleteResult, error) {
	object := d.target.Version.Codec.New()
	data, err := d.target.Version.Codec.Store(object)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return &deleteResult{Result: Result{Object: object, Stored: data, Deleted: true, Rehearsed: true, Blank: true}}, nil
}

// markDeleting marks an object of a kind without grace periods.
func markDeleting(object metav1.Object, now metav1.Time) {
	if object.GetDeletionTimestamp() == nil && object.GetGeneration() > 0 {
		object.SetGeneration(object.GetGeneration() + 1)
	}
	if stamp := object.GetDeletionTimestamp(); stamp == nil || stamp.After(now.Time) {
		object.SetDeletionTimestamp(&now)
	}
	zero := int64(0)
	object.SetDeletionGracePeriodSeconds(&zero)
}

// collectionFinalizers returns an object's finalizers with those of garbage collection as the propagation policy
// wants them: the client's, else what the finalizers already say, else the kind's default.
func collectionFinalizers(ctx context.Context, strategy rest.RESTDeleteStrategy, finalizers []string, options *metav1.DeleteOptions) []string {
	policy := propagation(ctx, strategy, finalizers, options)
	has := func(finalizer string) bool { return slices.Contains(finalizers, finalizer) }
	orphan, foreground := policy == metav1.DeletePropagationOrphan, policy == metav1.DeletePropagationForeground
	if has(metav1.FinalizerOrphanDependents) == orphan && has(metav1.FinalizerDeleteDependents) == foreground {
		return finalizers
	}
	kept := make([]string, 0, len(finalizers)+1)
	for _, finalizer := range finalizers {
		if finalizer != metav1.FinalizerOrphanDependents && finalizer != metav1.FinalizerDeleteDependents {
			kept = append(kept, finalizer)
		}
	}
	if orphan {
		kept = append(kept, metav1.FinalizerOrphanDependents)
	}
	if foreground {
		kept = append(kept, metav1.FinalizerDeleteDependents)
	}
	return kept
}

// propagation decides what happens to an object's dependents.
func propagation(ctx context.Context, strategy rest.RESTDeleteStrategy, finalizers []string, options *metav1.DeleteOptions) metav1.DeletionPropagation {
	standard := rest.DeleteDependents
	if s, ok := strategy.(rest.GarbageCollectionDeleteStrategy); ok {
		standard = s.DefaultGarbageCollectionPolicy(ctx)
	}
	switch {
	case standard == rest.Unsupported:
		return metav1.DeletePropagationBackground
	case options.OrphanDependents != nil && *options.OrphanDependents: //nolint:staticcheck // still sent by old clients
		return metav1.DeletePropagationOrphan
	case options.OrphanDependents != nil: //nolint:staticcheck // still sent by old clients
		return metav1.DeletePropagationBackground
	case options.PropagationPolicy != nil:
		return *options.PropagationPolicy
	}
	for _, finalizer := range finalizers {
		switch finalizer {
		case metav1.FinalizerOrphanDependents:
			return metav1.DeletePropagationOrphan
		case metav1.FinalizerDeleteDependents:
			return metav1.DeletePropagationForeground
		}
	}
	if standard == rest.OrphanDependents {
		return metav1.DeletePropagationOrphan
	}
	return metav1.DeletePropagationBackground
}
