package registry

import (
	"bytes"
	"context"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/registry/rest"

	"quorate.dev/apiserver/admission"
	"quorate.dev/apiserver/resource"
)

// Update stores the result of a change to the target's object.
func (r *Registry) Update(ctx context.Context, t Target, change Change, options WriteOptions) (*Result, error) {
	ctx = t.context(ctx)
	return r.retry(ctx, t, options.DryRun, &update{registry: r, target: t, change: change, options: options})
}

// Patch applies a patch to the target's object.
func (r *Registry) Patch(ctx context.Context, t Target, patch Patch, options WriteOptions) (*Result, error) {
	options.applied = patch.Type == types.ApplyYAMLPatchType
	return r.Update(ctx, t, patch, options)
}

// update is a PUT, a PATCH or an internal update. The fields below options belong to the latest attempt.
type update struct {
	registry *Registry
	target   Target
	change   Change
	options  WriteOptions

	current state
	old     runtime.Object // decoded current; read-only
	object  runtime.Object // its replacement
}

// attempt implements writer.
func (u *update) attempt(ctx context.Context, current state) (*Result, error) {
	u.current = current
	if !current.found {
		return u.create(ctx)
	}
	var err error
	if u.old, err = load(ctx, u.target, current); err != nil {
		return nil, err
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

// changeObject applies the change and runs mutating admission.
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
	removeDuplicateOwners(ctx, u.object, duplicateOwnersAdmitted)
	return nil
}

func (u *update) attributes(ctx context.Context, object, old runtime.Object) *admission.Attributes {
	return attributes(ctx, u.target, u.options,
		&admission.Attributes{Operation: admission.Update, Object: object, Old: old})
}

// create creates the object if the change or the strategy permits it.
func (u *update) create(ctx context.Context) (*Result, error) {
	r, t := u.registry, u.target
	if t.Endpoint.Subresource != "" || (!u.change.CreatesMissing() && !updateStrategy(t).AllowCreateOnUpdate()) {
		return nil, apierrors.NewNotFound(t.GroupResource(), t.Name)
	}
	if err := u.checkUID(""); err != nil {
		return nil, err
	}
	if err := r.authorizeCreate(ctx, t); err != nil {
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
		setRevision(object, 0) // the client may have sent that of a deleted object
	}
	admitted, err := r.admitNew(ctx, t, object, u.options)
	if err != nil {
		return nil, err
	}
	return r.insert(ctx, t, admitted, u.options)
}

// updateStrategy is that of the endpoint, or of the resource itself if the endpoint is a view of it.
func updateStrategy(t Target) rest.RESTUpdateStrategy {
	if t.Endpoint.Update != nil {
		return t.Endpoint.Update
	}
	return t.main().Update
}

// replace validates the new object and stores it in place of the old one.
func (u *update) replace(ctx context.Context) (result *Result, err error) {
	r, t := u.registry, u.target
	if err := checkRevision(t, u.object, u.current.revision); err != nil {
		return nil, err
	}
	admitted := u.attributes(ctx, u.object, u.old)
	if err := r.admission.Reserve(ctx, admitted); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			r.admission.Rollback(ctx, admitted)
		}
	}()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := beforeUpdate(ctx, updateStrategy(t), u.object, u.old); err != nil {
		return nil, err
	}
	if err := u.validate(ctx, admitted); err != nil {
		return nil, err
	}
	if deletionComplete(u.object, u.old) && !hasPendingFinalizers(t, u.object) {
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
	before, err := viewBefore(view, u.old)
	if err != nil {
		return err
	}
	after, err := view.Get(u.object)
	if err != nil {
		return err
	}
	return u.registry.admission.Validate(ctx, u.attributes(ctx, after, before))
}

// store encodes the new object and writes it if it differs from the stored one.
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
	result := &Result{Outcome: Updated, Object: u.object, Stored: data, Revision: u.current.revision, DryRun: u.options.DryRun}
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

func (u *update) put(ctx context.Context, data []byte) (int64, error) {
	ttl := timeToLive(u.target, u.object)
	return u.registry.storageOf(u.target.Match).Store.Update(ctx, u.target.path(), u.current.revision, data, ttl)
}

// encode encodes the new object. If it differs from the old one only in the times of its managed fields, it gets the
// old times, so that nothing is written.
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
	if !sameManagers(before.GetManagedFields(), managed) {
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

// deletionComplete reports whether an update removed the last finalizer of an object that is being deleted.
func deletionComplete(object, old runtime.Object) bool {
	after, err := meta.Accessor(object)
	if err != nil {
		return false
	}
	before, err := meta.Accessor(old)
	if err != nil || len(after.GetFinalizers()) > 0 || after.GetDeletionTimestamp() == nil {
		return false
	}
	// A running grace period ends with a second DELETE, by the kubelet for instance.
	return before.GetDeletionGracePeriodSeconds() == nil || *before.GetDeletionGracePeriodSeconds() == 0
}

// hasPendingFinalizers reports whether an object that is being deleted has finalizers outside its metadata, like the
// spec.finalizers of a namespace.
func hasPendingFinalizers(t Target, object runtime.Object) bool {
	terminator, ok := t.main().Delete.(resource.Terminator)
	return ok && terminator.Terminate(object.DeepCopyObject(), &metav1.DeleteOptions{})
}

// finishDeletion removes an object whose update removed the last finalizer. It rolls back the reservations of the
// updated object and commits the deletion of the stored one.
func (u *update) finishDeletion(ctx context.Context, admitted *admission.Attributes) (*Result, error) {
	r := u.registry
	// The client sees its update at the revision that it replaced.
	result := &Result{Outcome: Finalized, Object: u.object, Revision: u.current.revision, DryRun: u.options.DryRun}
	var err error
	if !u.target.ConvertsRemotely { // as in kube-apiserver, no webhook converts what is not stored
		if result.Stored, err = encode(ctx, u.target, u.object); err != nil {
			return nil, internalError(err)
		}
	}
	if u.options.DryRun {
		return result, nil
	}
	_, err = r.storageOf(u.target.Match).Store.Delete(ctx, u.target.path(), u.current.revision)
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
