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
	"quorate.dev/apiserver/registry/change"
	"quorate.dev/apiserver/registry/strategy"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/storage"
)

// generateAttempts is how many names are tried for an object with generateName: maxNameGenerationCreateAttempts of
// kube-apiserver's Store. A suffix has 27^5 values, so that a namespace with 100,000 generated names refuses
// practically no create.
const generateAttempts = 8

// Create stores a new object, which it takes ownership of. If the endpoint has an action, Create runs the action
// instead. The steps are in the order of kube-apiserver's create handler and Store.create: managed fields, mutating
// admission, reservations, strategy, validating admission, storage.
func (r *Registry) Create(
	ctx context.Context, t resource.Target, object runtime.Object, options WriteOptions,
) (*Result, error) {
	ctx = t.WithNamespace(ctx)
	if t.Endpoint.Action != nil {
		return r.runAction(ctx, t, object, options)
	}
	accessor, err := meta.Accessor(object)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	t = t.Named(accessor.GetName())
	change.RemoveDuplicateOwners(ctx, object)
	if err := change.Track(t, nil, object, options.Manager); err != nil {
		return nil, err
	}
	admitted, err := r.admitNew(ctx, t, object, options)
	if err != nil {
		return nil, err
	}
	result, err := r.insertNamed(ctx, t, admitted, options)
	return result, r.createError(ctx, t, admitted.Object, err)
}

// admitNew runs mutating admission on a new object, whose managed fields must be up to date, because webhooks see them.
// The UID and creation timestamp are set afterwards, so that neither clients nor plugins can choose them.
func (r *Registry) admitNew(
	ctx context.Context, t resource.Target, object runtime.Object, options WriteOptions,
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
	change.RemoveDuplicateOwnersAdmitted(ctx, object)
	return a, nil
}

// insertNamed stores an admitted object under its name or a generated one.
func (r *Registry) insertNamed(
	ctx context.Context, t resource.Target, admitted *admission.Attributes, options WriteOptions,
) (*Result, error) {
	accessor, err := meta.Accessor(admitted.Object)
	if err != nil {
		return nil, err
	}
	if accessor.GetName() != "" || accessor.GetGenerateName() == "" {
		return r.insert(ctx, t.Named(accessor.GetName()), admitted, options)
	}
	return r.insertGenerated(ctx, t, admitted, options)
}

// insertGenerated tries generated names until one is free. Each attempt repeats the reservations, the strategy and
// validating admission with the new name, but not mutating admission, as in Store.createWithGenerateNameRetry.
func (r *Registry) insertGenerated(
	ctx context.Context, t resource.Target, admitted *admission.Attributes, options WriteOptions,
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
		result, err := r.insert(ctx, t.Named(admitted.Name), admitted, options)
		if !errors.Is(err, storage.ErrExists) || attempt == generateAttempts {
			return result, err
		}
	}
}

// insert validates and stores an admitted object that has its name. It returns storage.ErrExists if the name is taken.
// Reservations come before the strategy, as BeginCreate comes before rest.BeforeCreate in Store.create, so that the
// allocated addresses and ports are validated too.
func (r *Registry) insert(
	ctx context.Context, t resource.Target, admitted *admission.Attributes, options WriteOptions,
) (result *Result, err error) {
	object := admitted.Object
	if err := r.admission.Reserve(ctx, admitted); err != nil {
		return nil, err
	}
	defer func() { r.rollback(ctx, admitted, err) }()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := strategy.BeforeCreate(ctx, t, object); err != nil {
		return nil, err
	}
	accessor, err := meta.Accessor(object)
	if err != nil {
		return nil, err
	}
	t = t.Named(accessor.GetName()) // some strategies choose the name
	if err := r.admission.Validate(ctx, admitted); err != nil {
		return nil, err
	}
	if err := checkNewResourceVersion(object, options.DryRun); err != nil {
		return nil, err
	}
	return r.storeNew(ctx, t, admitted, options)
}

// rollback releases the reservations of a write that has failed. An object whose write has an unknown outcome may be
// stored, now or later, and keeps its reservations: otherwise another object could get the same address. The repair
// controllers of addresses and ports release them if the object was not stored.
func (r *Registry) rollback(ctx context.Context, admitted *admission.Attributes, err error) {
	if err != nil && !errors.Is(err, storage.ErrUncertain) {
		r.admission.Rollback(ctx, admitted)
	}
}

// storeNew encodes and stores a validated object, and gives the object the revision of the write.
func (r *Registry) storeNew(
	ctx context.Context, t resource.Target, admitted *admission.Attributes, options WriteOptions,
) (*Result, error) {
	object := admitted.Object
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
	revision, err := r.putNew(ctx, t, admitted, data, ttl, options)
	if retryWithoutManagedFields(err, options) {
		if data, err = encodeUnmanaged(ctx, t, object); err == nil {
			revision, err = r.putNew(ctx, t, admitted, data, ttl, options)
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

// putNew stores bytes under a new path. In a dry run, or beyond the soft quota, it only checks that the path is free
// and that the definition of a custom resource permits the creation; these errors are more helpful than a full
// database. The token of limitOwn is taken last, immediately before the write.
func (r *Registry) putNew(
	ctx context.Context, t resource.Target, admitted *admission.Attributes, data []byte, ttl time.Duration,
	options WriteOptions,
) (int64, error) {
	quotaErr := r.checkQuota(t, nil, 0, len(data), options)
	if !options.DryRun && quotaErr == nil {
		if err := r.limitOwn(ctx, t, nil); err != nil {
			return 0, err
		}
		return r.create(ctx, t, admitted, data, ttl)
	}
	if t.Permission != nil {
		if _, err := r.permitted(ctx, t); err != nil {
			return 0, err
		}
	}
	_, err := r.storageOf(t.Match).Store.Get(ctx, t.Path())
	switch {
	case errors.Is(err, storage.ErrNotFound):
		return 0, quotaErr
	case err == nil:
		return 0, storage.ErrExists
	}
	return 0, err
}

// createError returns the API status of an error. If the name is taken, the message says that the client may retry with
// another generated name (rest.CheckGeneratedNameError), and whether the existing object is being deleted, in which
// case waiting helps. Finding out the latter costs a read.
func (r *Registry) createError(ctx context.Context, t resource.Target, object runtime.Object, err error) error {
	accessor, accessErr := meta.Accessor(object)
	if accessErr != nil || !errors.Is(err, storage.ErrExists) {
		return status(err, t)
	}
	t = t.Named(accessor.GetName())
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

// isTerminating reports whether the target's object has a deletion timestamp. An object that cannot be read counts as
// not terminating, because the result only completes an error message.
func (r *Registry) isTerminating(ctx context.Context, t resource.Target) bool {
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

// runAction admits the body of a create-only endpoint, such as bindings, evictions and tokens, and runs its action. The
// action calls Call.Validate once it has completed the body; an action that does not is an error, because its body
// would have passed no validating admission. The reservers of a Chain are not involved.
func (r *Registry) runAction(
	ctx context.Context, t resource.Target, body runtime.Object, options WriteOptions,
) (*Result, error) {
	change.RemoveDuplicateOwners(ctx, body)
	if err := change.Track(t, nil, body, options.Manager); err != nil {
		return nil, err
	}
	a := attributes(ctx, t, options, &admission.Attributes{Operation: admission.Create, Object: body})
	if accessor, err := meta.Accessor(body); err == nil && a.Name == "" {
		a.Name = accessor.GetName()
	}
	if err := r.admission.Admit(ctx, a); err != nil {
		return nil, err
	}
	change.RemoveDuplicateOwnersAdmitted(ctx, body)
	validated := false
	create := &metav1.CreateOptions{FieldManager: options.Manager}
	if options.DryRun {
		create.DryRun = []string{metav1.DryRunAll}
	}
	response, err := t.Endpoint.Action(ctx, resource.Call{
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

// timeToLive returns the time after which etcd deletes an object that is stored now; 0: never.
func timeToLive(t resource.Target, object runtime.Object) time.Duration {
	if t.TimeToLive == nil {
		return 0
	}
	return t.TimeToLive(object)
}
