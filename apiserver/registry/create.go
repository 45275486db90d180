package registry

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"

	"quorate.dev/apiserver/admission"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/storage"
)

// generateAttempts is how many names are tried for an object with generateName.
const generateAttempts = 8

// Create stores a new object, which it takes ownership of. If the endpoint has an action, it runs the action instead.
func (r *Registry) Create(ctx context.Context, t Target, object runtime.Object, options WriteOptions) (*Result, error) {
	ctx = t.context(ctx)
	if t.Endpoint.Action != nil {
		return r.runAction(ctx, t, object, options)
	}
	accessor, err := meta.Accessor(object)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	t = t.named(accessor.GetName())
	removeDuplicateOwners(ctx, object, duplicateOwners)
	if err := track(t, nil, object, options.Manager); err != nil {
		return nil, err
	}
	admitted, err := r.admitNew(ctx, t, object, options)
	if err != nil {
		return nil, err
	}
	result, err := r.insertNamed(ctx, t, admitted, options)
	return result, r.createError(ctx, t, admitted.Object, err)
}

// admitNew runs mutating admission on a new object. Its managed fields must be up to date.
func (r *Registry) admitNew(
	ctx context.Context, t Target, object runtime.Object, options WriteOptions,
) (*admission.Attributes, error) {
	if t.Terminating { // like kube-apiserver's forbidCreateAdmission, before all other admission
		return nil, terminating(t)
	}
	if err := ctx.Err(); err != nil { // after the managed fields
		return nil, err
	}
	a := attributes(ctx, t, options, &admission.Attributes{Operation: admission.Create, Object: object})
	if err := r.admission.Admit(ctx, a); err != nil {
		return nil, err
	}
	accessor, err := meta.Accessor(object)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	rest.FillObjectMetaSystemFields(accessor)
	removeDuplicateOwners(ctx, object, duplicateOwnersAdmitted)
	return a, nil
}

// insertNamed stores an admitted object under its name or a generated one.
func (r *Registry) insertNamed(
	ctx context.Context, t Target, admitted *admission.Attributes, options WriteOptions,
) (*Result, error) {
	accessor, err := meta.Accessor(admitted.Object)
	if err != nil {
		return nil, err
	}
	if accessor.GetName() != "" || accessor.GetGenerateName() == "" {
		return r.insert(ctx, t.named(accessor.GetName()), admitted, options)
	}
	return r.insertGenerated(ctx, t, admitted, options)
}

// insertGenerated tries generated names until one is free.
func (r *Registry) insertGenerated(
	ctx context.Context, t Target, admitted *admission.Attributes, options WriteOptions,
) (*Result, error) {
	original := admitted.Object
	for attempt := 1; ; attempt++ {
		admitted.Object = original // insert changes it, so only the last attempt may use the original
		if attempt < generateAttempts {
			admitted.Object = original.DeepCopyObject()
		}
		accessor, err := meta.Accessor(admitted.Object)
		if err != nil {
			return nil, err
		}
		admitted.Name = t.Endpoint.Create.GenerateName(accessor.GetGenerateName())
		accessor.SetName(admitted.Name)
		result, err := r.insert(ctx, t.named(admitted.Name), admitted, options)
		if !errors.Is(err, storage.ErrExists) || attempt == generateAttempts {
			return result, err
		}
	}
}

// insert validates and stores an admitted object that has its name. The error is storage.ErrExists if the name is
// taken.
func (r *Registry) insert(
	ctx context.Context, t Target, admitted *admission.Attributes, options WriteOptions,
) (result *Result, err error) {
	object := admitted.Object
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
	if err := beforeCreate(ctx, t.Version.Endpoints[""].Create, object); err != nil {
		return nil, err
	}
	accessor, err := meta.Accessor(object)
	if err != nil {
		return nil, err
	}
	t = t.named(accessor.GetName()) // some strategies choose the name
	if err := r.admission.Validate(ctx, admitted); err != nil {
		return nil, err
	}
	if err := checkNewResourceVersion(object, options.DryRun); err != nil {
		return nil, err
	}
	return r.storeNew(ctx, t, object, options)
}

// storeNew encodes and stores a validated object.
func (r *Registry) storeNew(ctx context.Context, t Target, object runtime.Object, options WriteOptions) (*Result, error) {
	if !options.DryRun {
		removeSelfLink(object)
	}
	if err := ctx.Err(); err != nil { // after validation
		return nil, err
	}
	data, err := encode(ctx, t, object)
	if err != nil {
		return nil, internalError(err)
	}
	ttl := timeToLive(t, object)
	revision, err := r.putNew(ctx, t, data, ttl, options)
	if retryWithoutManagedFields(err, options) {
		if data, err = encodeUnmanaged(ctx, t, object); err == nil {
			revision, err = r.putNew(ctx, t, data, ttl, options)
		}
	}
	if err != nil {
		return nil, err
	}
	if options.DryRun {
		return dryRunResult(ctx, t, object)
	}
	setRevision(object, revision)
	return &Result{Outcome: Created, Object: object, Stored: data, Revision: revision}, nil
}

// putNew stores bytes under a new path. In a dry run, or beyond the soft quota, it only checks that the path is free:
// that the name is taken is the more helpful error.
func (r *Registry) putNew(
	ctx context.Context, t Target, data []byte, ttl time.Duration, options WriteOptions,
) (int64, error) {
	quotaErr := r.checkQuota(t, nil, 0, len(data), options)
	if !options.DryRun && quotaErr == nil {
		return r.create(ctx, t, data, ttl)
	}
	if t.Permission != nil {
		if _, err := r.permitted(ctx, t); err != nil {
			return 0, err
		}
	}
	_, err := r.storageOf(t.Match).Store.Get(ctx, t.path())
	switch {
	case errors.Is(err, storage.ErrNotFound):
		return 0, quotaErr
	case err == nil:
		return 0, storage.ErrExists
	}
	return 0, err
}

// createError returns the API status of an error. If the name is taken, it adds that another generated name may be
// free and that the existing object is being deleted.
func (r *Registry) createError(ctx context.Context, t Target, object runtime.Object, err error) error {
	accessor, accessErr := meta.Accessor(object)
	if accessErr != nil || !errors.Is(err, storage.ErrExists) {
		return status(err, t)
	}
	t = t.named(accessor.GetName())
	err = status(err, t)
	if accessor.GetGenerateName() != "" {
		err = apierrors.NewGenerateNameConflict(t.GroupResource(), accessor.GetName(), 1)
	}
	var taken *apierrors.StatusError
	if r.isTerminating(ctx, t) && errors.As(err, &taken) {
		taken.ErrStatus.Message = "object is being deleted: " + taken.ErrStatus.Message
	}
	return err
}

// isTerminating reports whether the target's object has a deletion timestamp.
func (r *Registry) isTerminating(ctx context.Context, t Target) bool {
	current, err := r.storedState(ctx, t)
	if err != nil || !current.found {
		return false
	}
	object, err := load(ctx, t, current)
	if err != nil {
		return false
	}
	accessor, err := meta.Accessor(object)
	return err == nil && accessor.GetDeletionTimestamp() != nil
}

var errNotValidated = errors.New("the action did not run validating admission")

// runAction admits the body of a create-only endpoint and runs its action.
func (r *Registry) runAction(ctx context.Context, t Target, body runtime.Object, options WriteOptions) (*Result, error) {
	removeDuplicateOwners(ctx, body, duplicateOwners)
	if err := track(t, nil, body, options.Manager); err != nil {
		return nil, err
	}
	a := attributes(ctx, t, options, &admission.Attributes{Operation: admission.Create, Object: body})
	if accessor, err := meta.Accessor(body); err == nil && a.Name == "" {
		a.Name = accessor.GetName()
	}
	if err := r.admission.Admit(ctx, a); err != nil {
		return nil, err
	}
	removeDuplicateOwners(ctx, body, duplicateOwnersAdmitted)
	validated := false
	create := &metav1.CreateOptions{FieldManager: options.Manager}
	if options.DryRun {
		create.DryRun = []string{metav1.DryRunAll}
	}
	response, err := t.Endpoint.Action(ctx, r.Client(), resource.Call{
		Definition: t.Definition,
		Version:    t.Version,
		Namespace:  t.Namespace,
		Name:       t.Name,
		Body:       body,
		Options:    create,
		DryRun:     options.DryRun,
		Validate: func(ctx context.Context) error {
			validated = true
			return r.admission.Validate(ctx, a)
		},
	})
	if err != nil {
		return nil, err
	}
	if !validated {
		return nil, apierrors.NewInternalError(errNotValidated)
	}
	return &Result{Outcome: Created, Object: response}, nil
}

// removeSelfLink clears metadata.selfLink, which is never stored. Dry runs return it, like kube-apiserver's.
func removeSelfLink(object runtime.Object) {
	if accessor, err := meta.Accessor(object); err == nil {
		accessor.SetSelfLink("")
	}
}

func timeToLive(t Target, object runtime.Object) time.Duration {
	if t.TimeToLive == nil {
		return 0
	}
	return t.TimeToLive(object)
}
