package registry

import (
	"bytes"
	"context"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"

	"quorate.dev/apiserver/admission"
	"quorate.dev/apiserver/registry/change"
	"quorate.dev/apiserver/registry/strategy"
	"quorate.dev/apiserver/resource"
)

// Update stores the result of a change to the target's object. The steps are in the order of kube-apiserver's
// Store.Update, in which the change and mutating admission are the UpdatedObjectInfo; each attempt runs all of them.
func (r *Registry) Update(
	ctx context.Context, t resource.Target, c change.Change, options WriteOptions,
) (*Result, error) {
	ctx = t.WithNamespace(ctx)
	return r.retry(ctx, t, options.DryRun, &update{registry: r, target: t, change: c, options: options})
}

// Patch applies a patch to the target's object.
func (r *Registry) Patch(
	ctx context.Context, t resource.Target, patch change.Patch, options WriteOptions,
) (*Result, error) {
	options.applied = patch.CreatesMissing()
	return r.Update(ctx, t, patch, options)
}

// update is a PUT, a PATCH or an internal update. The fields below own belong to the latest attempt.
type update struct {
	registry *Registry
	target   resource.Target
	change   change.Change
	options  WriteOptions
	own      ownWrite

	current state
	old     runtime.Object // decoded current; read-only
	object  runtime.Object // replacement of old; strategies may let it share memory with old
}

// attempt implements writer.
func (u *update) attempt(ctx context.Context, current state) (*Result, error) {
	u.current = current
	if !current.found {
		return u.create(ctx)
	}
	var err error
	if u.old, err = load(ctx, u.target, current); err != nil {
		return nil, u.registry.updateError(ctx, u.target, current, err)
	}
	accessor, err := meta.Accessor(u.old)
	if err != nil {
		return nil, err
	}
	if err := u.checkUID(accessor.GetUID()); err != nil {
		return nil, err
	}
	if u.target.Endpoint.View != nil {
		err = u.changeView(ctx)
	} else {
		err = u.changeObject(ctx)
	}
	if err != nil {
		return nil, err
	}
	return u.replace(ctx)
}

// changeObject applies the change and runs mutating admission, which may change only the new object.
func (u *update) changeObject(ctx context.Context) error {
	var err error
	if u.object, err = u.change.Apply(ctx, u.target, u.old); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := u.registry.admission.Admit(ctx, u.attributes(ctx, u.object, u.old)); err != nil {
		return err
	}
	change.RemoveDuplicateOwnersAdmitted(ctx, u.object)
	return nil
}

// changeView applies the change to the view of the object, runs mutating admission on the view, and writes it back
// into a copy of the object.
func (u *update) changeView(ctx context.Context) error {
	view, err := change.NewView(u.target, u.old)
	if err != nil {
		return err
	}
	after, err := u.change.Apply(ctx, u.target, view.Before)
	if err != nil {
		return err
	}
	if err := u.registry.admission.Admit(ctx, u.attributes(ctx, after, view.Before)); err != nil {
		return err
	}
	u.object = view.Object
	return view.Write(ctx, after)
}

// attributes returns new attributes of the update for admission. The steps after mutating admission get other
// attributes than mutating admission itself: on an endpoint with a view, plugins mutate the view, and reservers see the
// object.
func (u *update) attributes(ctx context.Context, object, old runtime.Object) *admission.Attributes {
	return attributes(ctx, u.target, u.options,
		&admission.Attributes{Operation: admission.Update, Object: object, Old: old})
}

// create creates the object if the change or the strategy permits it: a server-side apply, or a kind with
// AllowCreateOnUpdate such as Lease. The user also needs the permission to create. Unlike Create, it tries only the
// name of the path and returns storage.ErrExists if a concurrent request has created the object, after which retry
// updates it.
func (u *update) create(ctx context.Context) (*Result, error) {
	r, t := u.registry, u.target
	if t.Endpoint.Subresource != "" || (!u.change.CreatesMissing() && !strategy.ForUpdate(t).AllowCreateOnUpdate(ctx)) {
		return nil, apierrors.NewNotFound(t.GroupResource(), t.Name)
	}
	if err := u.checkUID(""); err != nil {
		return nil, err
	}
	if err := authorizeCreate(ctx, t, u.options); err != nil {
		return nil, err
	}
	object, err := u.change.Apply(ctx, t, nil)
	if err != nil {
		return nil, err
	}
	if err := checkCreateByUpdate(t, object); err != nil {
		return nil, err
	}
	if !u.options.DryRun {
		setRevision(object, 0) // the client may have sent the resourceVersion of a deleted object
	}
	admitted, err := r.admitNew(ctx, t, object, u.options)
	if err != nil {
		return nil, err
	}
	accessor, err := meta.Accessor(object)
	if err != nil {
		return nil, err
	}
	rest.WipeObjectMetaSystemFields(accessor) // a deletion timestamp, for example, of an object that has been deleted
	rest.FillObjectMetaSystemFields(accessor)
	return r.insert(ctx, t, admitted, u.options)
}

// replace validates the new object and stores it in place of the old one. An update that removes the last finalizer of
// an object that is being deleted removes the object instead (Store.ShouldDeleteDuringUpdate).
func (u *update) replace(ctx context.Context) (result *Result, err error) {
	r, t := u.registry, u.target
	if err := checkRevision(ctx, t, u.object, u.current.revision); err != nil {
		return nil, err
	}
	admitted := u.attributes(ctx, u.object, u.old)
	if err := r.admission.Reserve(ctx, admitted); err != nil {
		return nil, err
	}
	defer func() { r.rollback(ctx, admitted, err) }()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := strategy.BeforeUpdate(ctx, t, u.object, u.old); err != nil {
		return nil, err
	}
	if err := u.validate(ctx, admitted); err != nil {
		return nil, err
	}
	if strategy.DeletionComplete(u.object, u.old) && !hasPendingFinalizers(t, u.object) {
		return u.finishDeletion(ctx, admitted)
	}
	result, err = u.store(ctx)
	if err == nil && result.Outcome == Updated && !result.DryRun {
		r.admission.Commit(ctx, admitted)
	}
	return result, err
}

// validate runs validating admission on the object as it will be stored or, for a view, as it will be read.
func (u *update) validate(ctx context.Context, admitted *admission.Attributes) error {
	view := u.target.Endpoint.View
	if view == nil {
		return u.registry.admission.Validate(ctx, admitted)
	}
	before, err := change.ViewBefore(view, u.old)
	if err != nil {
		return err
	}
	after, err := view.Get(u.object)
	if err != nil {
		return err
	}
	return u.registry.admission.Validate(ctx, u.attributes(ctx, after, before))
}

// store encodes the new object and writes it if it differs from the stored one. Equal bytes count as unchanged, so that
// no revision is used and no watcher sees an event, unless the value in etcd is encrypted with a former key.
func (u *update) store(ctx context.Context) (*Result, error) {
	if !u.options.DryRun {
		removeSelfLink(u.object)
	}
	if err := ctx.Err(); err != nil { // after validation
		return nil, err
	}
	data, err := u.encode(ctx)
	if err != nil {
		return nil, internalError(err)
	}
	result := &Result{
		Outcome: Updated, Object: u.object, Stored: data, Revision: u.current.revision, DryRun: u.options.DryRun,
	}
	if bytes.Equal(data, u.current.data) && (!u.current.stale || u.options.DryRun) {
		result.Outcome = Unchanged
		return result, nil
	}
	if u.options.DryRun {
		return result, nil
	}
	if err := u.registry.checkQuota(u.target, u.old, len(u.current.data), len(data), u.options); err != nil {
		return nil, err
	}
	result.Revision, err = u.put(ctx, data)
	if retryWithoutManagedFields(err, u.options) {
		if result.Stored, err = encodeUnmanaged(ctx, u.target, u.object); err == nil {
			result.Revision, err = u.put(ctx, result.Stored)
		}
	}
	if err != nil {
		return nil, err
	}
	setRevision(u.object, result.Revision)
	return result, nil
}

// rewrite implements writer. It encrypts the unchanged object with the current key.
func (u *update) rewrite(ctx context.Context, current state, result *Result) (_ *Result, err error) {
	if u.options.DryRun {
		return result, nil
	}
	u.current = current
	if result.Revision, err = u.put(ctx, result.Stored); err != nil {
		return nil, err
	}
	result.Outcome = Updated
	setRevision(result.Object, result.Revision)
	return result, nil
}

// put writes bytes on the condition that the object still has the revision of u.current. An update renews the TTL of
// the object.
func (u *update) put(ctx context.Context, data []byte) (int64, error) {
	if err := u.own.limit(ctx, u.registry, u.target, u.old); err != nil {
		return 0, err
	}
	ttl := timeToLive(u.target, u.object)
	return u.registry.storageOf(u.target.Match).Store.Update(ctx, u.target.Path(), u.current.revision, data, ttl)
}

// encode encodes the new object. If it differs from the old one only in the times of its managed fields, it gets the
// old times, so that nothing is written.
//
// It mirrors IgnoreManagedFieldsTimestampsTransformer, which compares the decoded objects before validating admission;
// encode compares the stored bytes. If the managers are equal but the objects are not, the object is encoded twice;
// with a conversion webhook, each encoding may be a call, and decoded objects are compared first.
func (u *update) encode(ctx context.Context) ([]byte, error) {
	before, err := meta.Accessor(u.old)
	if err != nil {
		return nil, err
	}
	after, err := meta.Accessor(u.object)
	if err != nil {
		return nil, err
	}
	managed := after.GetManagedFields()
	began := u.registry.clock.Now()
	if !change.SameManagers(before.GetManagedFields(), managed) {
		u.registry.metrics.compared(unequalManagers, u.registry.clock.Since(began))
		return encode(ctx, u.target, u.object)
	}
	after.SetManagedFields(before.GetManagedFields())
	if u.target.ConvertsRemotely && !apiequality.Semantic.DeepEqual(u.object, u.old) { // saves a call of the webhook
		after.SetManagedFields(managed)
		return encode(ctx, u.target, u.object)
	}
	data, err := encode(ctx, u.target, u.object)
	if err != nil || bytes.Equal(data, u.current.data) {
		u.registry.metrics.compared(equalObjects, u.registry.clock.Since(began))
		return data, err
	}
	u.registry.metrics.compared(unequalObjects, u.registry.clock.Since(began))
	after.SetManagedFields(managed)
	return encode(ctx, u.target, u.object)
}

// hasPendingFinalizers reports whether an object that is being deleted has finalizers outside its metadata, like the
// spec.finalizers of a namespace.
func hasPendingFinalizers(t resource.Target, object runtime.Object) bool {
	terminator, ok := t.Main().Delete.(resource.Terminator)
	return ok && terminator.Terminate(object.DeepCopyObject(), &metav1.DeleteOptions{})
}

// finishDeletion removes an object whose update removed the last finalizer (Store.deleteWithoutFinalizers). It rolls
// back the reservations of the updated object and commits the deletion of the stored one. That a concurrent request has
// removed the object is no error: several controllers may remove the last finalizers at the same time.
func (u *update) finishDeletion(ctx context.Context, admitted *admission.Attributes) (*Result, error) {
	r := u.registry
	// The client sees its update at the revision that it replaced.
	result := &Result{Outcome: Finalized, Object: u.object, Revision: u.current.revision, DryRun: u.options.DryRun}
	var err error
	if !u.target.ConvertsRemotely { // as in kube-apiserver, no webhook converts an object that is not stored
		if result.Stored, err = encode(ctx, u.target, u.object); err != nil {
			return nil, internalError(err)
		}
	}
	if u.options.DryRun {
		return result, nil
	}
	if err = u.own.limit(ctx, r, u.target, u.old); err != nil {
		return nil, err
	}
	_, err = r.storageOf(u.target.Match).Store.Delete(ctx, u.target.Path(), u.current.revision)
	if err != nil && !isGone(err) {
		return nil, err
	}
	r.admission.Rollback(ctx, admitted)
	if err == nil { // otherwise the concurrent request that removed the object commits
		options := WriteOptions{Internal: u.options.Internal}
		r.admission.Commit(ctx, attributes(ctx, u.target, options,
			&admission.Attributes{Operation: admission.Delete, Old: u.old}))
	}
	return result, nil
}
