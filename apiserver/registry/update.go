package registry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"

	"quorate.dev/apiserver/admission"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/storage"
	"quorate.dev/apiserver/watchcache"
)

// Change produces the object to store from the one that is stored. Apply may be called more than once and must
// not change current, which is nil where there is no object.
type Change interface {
	Apply(ctx context.Context, t Target, current runtime.Object) (runtime.Object, error)
	// CreatesMissing reports whether the change makes sense without a current object.
	CreatesMissing() bool
	// UID is that of the one object that the change is meant for; empty: whatever bears the name.
	UID() types.UID
}

// state is an object as storage has it, or had it when the cache last looked.
type state struct {
	data     []byte
	revision int64
	found    bool
	// fresh is set when the state was read from storage for this request.
	fresh bool
}

// Patch applies a patch to the target's object.
func (r *Registry) Patch(ctx context.Context, t Target, patch Patch, options WriteOptions) (*Result, error) {
	options.applied = patch.Type == types.ApplyYAMLPatchType
	return r.Update(ctx, t, patch, options)
}

// Update stores what change makes of the target's object. It tries the cached state first and goes to storage when
// that turns out to be old, so that the common case reads nothing.
func (r *Registry) Update(ctx context.Context, t Target, change Change, options WriteOptions) (*Result, error) {
	ctx = t.context(ctx)
	current, err := r.stateFor(ctx, t, options.DryRun)
	if err != nil {
		return nil, status(err, t)
	}
	for {
		result, err := r.updateFrom(ctx, t, current, change, options)
		var conflict *storage.ConflictError
		switch {
		case err == nil && !(result.unchanged && !current.fresh):
			return &result.Result, nil
		case errors.As(err, &conflict):
			current = conflictState(conflict)
		case current.fresh && !errors.Is(err, storage.ErrExists):
			return nil, status(err, t)
		default:
			// What failed, or came to nothing, may have done so because the cached state is old, or because somebody else
			// was faster to create the object.
			if current, err = r.storedState(ctx, t); err != nil {
				return nil, status(err, t)
			}
		}
		if ctx.Err() != nil {
			return nil, status(ctx.Err(), t)
		}
	}
}

func conflictState(conflict *storage.ConflictError) state {
	return state{data: conflict.Current.Data, revision: conflict.Current.Revision, found: conflict.Found, fresh: true}
}

// isGone tells whether a write failed because there is nothing any more to be written to.
func isGone(err error) bool {
	var conflict *storage.ConflictError
	return errors.As(err, &conflict) && !conflict.Found
}

// stateFor returns the state that a write starts from: a rehearsal, in which storage will not complain that the state is
// old, starts from storage's own.
func (r *Registry) stateFor(ctx context.Context, t Target, dryRun bool) (state, error) {
	if dryRun {
		return r.storedState(ctx, t)
	}
	return r.cachedState(ctx, t)
}

// cachedState returns the object as the cache has it.
func (r *Registry) cachedState(ctx context.Context, t Target) (state, error) {
	snapshot, err := r.cache(t.Match).Snapshot(ctx, 0)
	if errors.Is(err, watchcache.ErrTooNew) || errors.Is(err, watchcache.ErrDropped) {
		return r.storedState(ctx, t)
	}
	if err != nil {
		return state{}, err
	}
	entry, ok := snapshot.Get(t.path())
	if !ok {
		return r.storedState(ctx, t)
	}
	return state{data: entry.Stored(), revision: entry.Revision(), found: true}, nil
}

func (r *Registry) storedState(ctx context.Context, t Target) (state, error) {
	value, err := r.store.Get(ctx, t.path())
	if errors.Is(err, storage.ErrNotFound) {
		return state{fresh: true}, nil
	}
	return state{data: value.Data, revision: value.Revision, found: err == nil, fresh: true}, err
}

type updateResult struct {
	Result
	unchanged bool
}

// updateFrom makes one attempt from one state.
func (r *Registry) updateFrom(ctx context.Context, t Target, current state, change Change, options WriteOptions) (updateResult, error) {
	if !current.found {
		return r.createByUpdate(ctx, t, change, options)
	}
	old, err := load(t, current)
	if err != nil {
		return updateResult{}, err
	}
	accessor, err := meta.Accessor(old)
	if err != nil {
		return updateResult{}, err
	}
	if err := r.checkUID(t, change.UID(), accessor.GetUID(), options.DryRun); err != nil {
		return updateResult{}, err
	}
	if t.Endpoint.View != nil {
		object, err := r.changeView(ctx, t, change, old, options)
		if err != nil {
			return updateResult{}, err
		}
		return r.replace(ctx, t, current, old, object, options)
	}
	object, err := change.Apply(ctx, t, old)
	if err != nil {
		return updateResult{}, err
	}
	if err := r.admission.Admit(ctx, r.attributes(ctx, t, admission.Update, object, old, options)); err != nil {
		return updateResult{}, err
	}
	removeDuplicateOwners(ctx, object, duplicateOwnersAdmitted)
	return r.replace(ctx, t, current, old, object, options)
}

func load(t Target, current state) (runtime.Object, error) {
	old, err := t.Version.Codec.Load(current.data)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	if current.revision > 0 { // else it is of a rehearsal
		setRevision(old, current.revision)
	}
	return old, nil
}

// createByUpdate creates what was to be updated, where that is allowed.
func (r *Registry) createByUpdate(ctx context.Context, t Target, change Change, options WriteOptions) (updateResult, error) {
	strategy := updateStrategy(t)
	if t.Endpoint.Subresource != "" || (!change.CreatesMissing() && !strategy.AllowCreateOnUpdate()) {
		return updateResult{}, apierrors.NewNotFound(t.GroupResource(), t.Name)
	}
	if err := r.checkUID(t, change.UID(), "", options.DryRun); err != nil {
		return updateResult{}, err
	}
	if err := r.mayCreate(ctx, t); err != nil {
		return updateResult{}, err
	}
	object, err := change.Apply(ctx, t, nil)
	if err != nil {
		return updateResult{}, err
	}
	if err := checkCreateByUpdate(t, object); err != nil {
		return updateResult{}, err
	}
	if !options.DryRun {
		setRevision(object, 0) // that of something that is gone
	}
	attributes, err := r.admitNew(ctx, t, object, options)
	if err != nil {
		return updateResult{}, err
	}
	result, err := r.insert(ctx, t, attributes, options)
	if err != nil {
		return updateResult{}, err
	}
	return updateResult{Result: *result}, nil
}

// claimsNothing refuses to create an object with what only those have that are stored. A revision is passed over, if it
// is one.
func checkCreateByUpdate(t Target, object runtime.Object) error {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return nil // admission says so
	}
	if accessor.GetUID() != "" {
		return apierrors.NewConflict(t.GroupResource(), t.Name, fmt.Errorf(
			"uid mismatch: the provided object specified uid %s, and no existing object was found", accessor.GetUID()))
	}
	_, err = parseUpdateRevision(accessor.GetResourceVersion())
	return err
}

// checkRevision compares the revision a client wants to replace with the one that is there, and fills in the
// latter where the client does not care.
func checkRevision(t Target, object runtime.Object, current int64) error {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return err
	}
	revision, err := parseUpdateRevision(accessor.GetResourceVersion())
	if err != nil {
		return err
	}
	if revision == 0 {
		if !updateStrategy(t).AllowUnconditionalUpdate() {
			return apierrors.NewInvalid(schema.GroupKind{Group: t.Group, Kind: t.Plural}, t.Name, field.ErrorList{
				field.Invalid(field.NewPath("metadata", "resourceVersion"), 0, "must be specified for an update"),
			})
		}
		setRevision(object, current)
		return nil
	}
	if revision != current {
		return apierrors.NewConflict(t.GroupResource(), t.Name, errors.New(modifiedMessage))
	}
	return nil
}

// parseUpdateRevision reads the revision in an object that a client sends; 0 where there is none.
func parseUpdateRevision(resourceVersion string) (int64, error) {
	if resourceVersion == "" {
		return 0, nil
	}
	revision, err := strconv.ParseUint(resourceVersion, 10, 64)
	return int64(revision), err
}

// updateStrategy is the endpoint's, or the resource's own where the endpoint is a view of it.
func updateStrategy(t Target) rest.RESTUpdateStrategy {
	if t.Endpoint.Update != nil {
		return t.Endpoint.Update
	}
	return t.main().Update
}

// replace checks and stores the new, admitted object in place of the old.
func (r *Registry) replace(ctx context.Context, t Target, current state, old, object runtime.Object, options WriteOptions) (result updateResult, err error) {
	if err := checkRevision(t, object, current.revision); err != nil {
		return result, err
	}
	attributes := r.attributes(ctx, t, admission.Update, object, old, options)
	if err := r.admission.Reserve(ctx, attributes); err != nil {
		return result, err
	}
	defer func() {
		if err != nil {
			r.admission.Rollback(ctx, attributes)
		}
	}()
	if err := rest.BeforeUpdate(updateStrategy(t), ctx, object, old); err != nil {
		return result, err
	}
	if err := r.validateReplacement(ctx, t, attributes, options); err != nil {
		return result, err
	}
	if deletionComplete(object, old) && !hasPendingFinalizers(t, object) {
		return r.finishDeletion(ctx, t, current, attributes)
	}
	if !options.DryRun {
		removeLink(object)
	}
	data, err := encodeReplacement(t, current, old, object)
	if err != nil {
		return result, apierrors.NewInternalError(err)
	}
	result.Object, result.Stored, result.Revision = object, data, current.revision
	if bytes.Equal(data, current.data) {
		result.unchanged = true
		return result, nil
	}
	if options.DryRun {
		result.Rehearsed = true
		return result, nil
	}
	if err := r.admitSize(t, old, len(current.data), len(data), options); err != nil {
		return result, err
	}
	result.Revision, err = r.store.Update(ctx, t.path(), current.revision, data, timeToLive(t, object))
	if retryWithoutManagedFields(err, options) {
		if result.Stored, err = encodeUnmanaged(t, object); err == nil {
			result.Revision, err = r.store.Update(ctx, t.path(), current.revision, result.Stored, timeToLive(t, object))
		}
	}
	if err != nil {
		return result, err
	}
	setRevision(object, result.Revision)
	r.admission.Commit(ctx, attributes)
	return result, nil
}

// validateReplacement asks admission about the object as it will be stored or, where the endpoint is a view, about how
// it will be seen.
func (r *Registry) validateReplacement(ctx context.Context, t Target, attributes *admission.Attributes, options WriteOptions) error {
	if t.Endpoint.View == nil {
		return r.admission.Validate(ctx, attributes)
	}
	before, err := viewBefore(t.Endpoint.View, attributes.Old)
	if err != nil {
		return err
	}
	after, err := t.Endpoint.View.Get(attributes.Object)
	if err != nil {
		return err
	}
	return r.admission.Validate(ctx, r.attributes(ctx, t, admission.Update, after, before, options))
}

// encodeReplacement encodes the new object. When it differs from the old in nothing but the times of its managed
// fields it becomes the old again, so that nothing is written.
func encodeReplacement(t Target, current state, old, object runtime.Object) ([]byte, error) {
	before, err := meta.Accessor(old)
	if err != nil {
		return nil, err
	}
	after, err := meta.Accessor(object)
	if err != nil {
		return nil, err
	}
	managed := after.GetManagedFields()
	if !sameManagers(before.GetManagedFields(), managed) {
		return encode(t, object)
	}
	after.SetManagedFields(before.GetManagedFields())
	data, err := encode(t, object)
	if err != nil || bytes.Equal(data, current.data) {
		return data, err
	}
	after.SetManagedFields(managed)
	return encode(t, object)
}

// goneForGood reports whether an update took away the last thing a deletion was waiting for.
func deletionComplete(object, old runtime.Object) bool {
	after, err := meta.Accessor(object)
	if err != nil {
		return false
	}
	before, err := meta.Accessor(old)
	if err != nil || len(after.GetFinalizers()) > 0 || after.GetDeletionTimestamp() == nil {
		return false
	}
	// A grace period that is still running is the deleter's to wait for.
	return before.GetDeletionGracePeriodSeconds() == nil || *before.GetDeletionGracePeriodSeconds() == 0
}

// unfinished reports whether an object that is being deleted stays for the sake of its own list of finalizers.
func hasPendingFinalizers(t Target, object runtime.Object) bool {
	terminator, ok := t.main().Delete.(resource.Terminator)
	return ok && terminator.Terminate(object.DeepCopyObject(), &metav1.DeleteOptions{})
}

// finishDeletion removes an object whose update took away the last thing that its deletion was waiting for. What was
// reserved for the updated object is given back, and what the stored one held is released.
func (r *Registry) finishDeletion(
	ctx context.Context, t Target, current state, update *admission.Attributes,
) (updateResult, error) {
	last, err := encode(t, update.Object)
	if err != nil {
		return updateResult{}, apierrors.NewInternalError(err)
	}
	// The client is shown its update, at the revision that it replaced.
	result := updateResult{Result: Result{
		Object: update.Object, Stored: last, Revision: current.revision,
		Deleted: true, Rehearsed: update.DryRun, Undecorated: true,
	}}
	if update.DryRun {
		return result, nil
	}
	_, err = r.store.Delete(ctx, t.path(), current.revision)
	if err != nil && !isGone(err) {
		return result, err
	}
	r.admission.Rollback(ctx, update)
	if err == nil { // else another writer was faster, and releases
		options := WriteOptions{Internal: update.Internal}
		r.admission.Commit(ctx, r.attributes(ctx, t, admission.Delete, nil, update.Old, options))
	}
	return result, nil
}

// Replacement is the Change of a PUT: the client's whole object.
type Replacement struct {
	Object  runtime.Object
	Manager string
}

// Apply implements Change.
func (c Replacement) Apply(ctx context.Context, t Target, current runtime.Object) (runtime.Object, error) {
	object := c.Object.DeepCopyObject()
	removeDuplicateOwners(ctx, object, duplicateOwners)
	return object, track(t, current, object, c.Manager)
}

// CheckName makes sure that object and path mean the same object.
func CheckName(object metav1.Object, t Target) error {
	switch name, namespace := object.GetName(), object.GetNamespace(); {
	case name == "":
		return apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s based on URL) was undeterminable: name must be provided", t.Name))
	case name != t.Name:
		return apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s) does not match the name on the URL (%s)", name, t.Name))
	case t.Namespace != "" && namespace != "" && namespace != t.Namespace:
		return apierrors.NewBadRequest(fmt.Sprintf("the namespace of the object (%s) does not match the namespace on the request (%s)", namespace, t.Namespace))
	}
	return nil
}

// CreatesMissing implements Change.
func (Replacement) CreatesMissing() bool { return false }

// UID implements Change.
func (c Replacement) UID() types.UID {
	if accessor, err := meta.Accessor(c.Object); err == nil {
		return accessor.GetUID()
	}
	return ""
}

// checkUID refuses a change that is meant for another incarnation than the current one.
func (r *Registry) checkUID(t Target, wanted, actual types.UID, dryRun bool) error {
	if wanted == "" || wanted == actual {
		return nil
	}
	unmet := resource.PreconditionError{What: "UID", Wanted: string(wanted), Actual: string(actual)}
	return r.storageConflict(t, unmet.Error(), dryRun)
}

// storageConflict tells what kept a change from being stored, in the words of kube-apiserver's storage. A rehearsal does
// not get to where keys have their prefix.
func (r *Registry) storageConflict(t Target, why string, dryRun bool) error {
	key := r.store.Key(t.path())
	if dryRun {
		key = "/" + t.path()
	}
	return apierrors.NewConflict(t.GroupResource(), t.Name, fmt.Errorf(
		"StorageError: invalid object, Code: 4, Key: %s, ResourceVersion: 0, AdditionalErrorMsg: %s", key, why))
}

// bodyCodec is the codec of the endpoint's request and response bodies.
func bodyCodec(t Target) resource.Codec {
	if t.Endpoint.Body != nil {
		return t.Endpoint.Body
	}
	return t.Version.Codec
}
