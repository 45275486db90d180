package registry

import (
	"context"
	"errors"
	"fmt"
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

// errTerminating is kube-apiserver's forbidCreateAdmission: it refuses creates before all other admission.
var errTerminating = errors.New("create not allowed while custom resource definition is terminating")

// Create stores a new object, which it takes over. Where the endpoint is an action, the action is done instead.
func (r *Registry) Create(ctx context.Context, t Target, object runtime.Object, options WriteOptions) (*Result, error) {
	ctx = t.context(ctx)
	if t.Endpoint.Action != nil {
		return r.act(ctx, t, object, options)
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
	attributes, err := r.admitNew(ctx, t, object, options)
	if err != nil {
		return nil, err
	}
	result, err := r.insertNamed(ctx, t, attributes, options)
	return result, r.creationError(ctx, t, attributes.Object, err)
}

// admitNew lets admission change a new object whose managed fields are in order.
func (r *Registry) admitNew(ctx context.Context, t Target, object runtime.Object, options WriteOptions) (*admission.Attributes, error) {
	if t.Terminating {
		return nil, apierrors.NewForbidden(t.GroupResource(), t.Name, errTerminating)
	}
	attributes := r.attributes(ctx, t, admission.Create, object, nil, options)
	if err := r.admission.Admit(ctx, attributes); err != nil {
		return nil, err
	}
	accessor, err := meta.Accessor(object)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	rest.FillObjectMetaSystemFields(accessor)
	removeDuplicateOwners(ctx, object, duplicateOwnersAdmitted)
	return attributes, nil
}

// insertNamed stores an admitted object under its name, or under one that it generates.
func (r *Registry) insertNamed(ctx context.Context, t Target, attributes *admission.Attributes, options WriteOptions) (*Result, error) {
	accessor, err := meta.Accessor(attributes.Object)
	if err != nil {
		return nil, err
	}
	if accessor.GetName() != "" || accessor.GetGenerateName() == "" {
		return r.insert(ctx, t.named(accessor.GetName()), attributes, options)
	}
	return r.insertGenerated(ctx, t, attributes, options)
}

// insertGenerated tries names until one is free.
func (r *Registry) insertGenerated(ctx context.Context, t Target, attributes *admission.Attributes, options WriteOptions) (*Result, error) {
	admitted := attributes.Object
	for attempt := 1; ; attempt++ {
		if attempt < generateAttempts {
			attributes.Object = admitted.DeepCopyObject()
		} else {
			attributes.Object = admitted
		}
		accessor, err := meta.Accessor(attributes.Object)
		if err != nil {
			return nil, err
		}
		attributes.Name = t.Endpoint.Create.GenerateName(accessor.GetGenerateName())
		accessor.SetName(attributes.Name)
		result, err := r.insert(ctx, t.named(attributes.Name), attributes, options)
		if !errors.Is(err, storage.ErrExists) || attempt == generateAttempts {
			return result, err
		}
	}
}

// insert checks and stores the admitted object, which has its name. The error is storage.ErrExists if the name is taken.
func (r *Registry) insert(ctx context.Context, t Target, attributes *admission.Attributes, options WriteOptions) (result *Result, err error) {
	object := attributes.Object
	if err := r.admission.Reserve(ctx, attributes); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			r.admission.Rollback(ctx, attributes)
		}
	}()
	if err := rest.BeforeCreate(t.Version.Endpoints[""].Create, ctx, object); err != nil {
		return nil, err
	}
	if t, err = nameChosen(t, object); err != nil {
		return nil, err
	}
	if err := r.admission.Validate(ctx, attributes); err != nil {
		return nil, err
	}
	if err := checkNewResourceVersion(object, options.DryRun); err != nil {
		return nil, err
	}
	if !options.DryRun {
		removeLink(object)
	}
	data, err := encode(t, object)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	revision, err := r.storeNew(ctx, t, data, timeToLive(t, object), options)
	if retryWithoutManagedFields(err, options) {
		if data, err = encodeUnmanaged(t, object); err == nil {
			revision, err = r.storeNew(ctx, t, data, timeToLive(t, object), options)
		}
	}
	if err != nil {
		return nil, err
	}
	if options.DryRun {
		return rehearsed(t, object)
	}
	setRevision(object, revision)
	return &Result{Object: object, Stored: data, Revision: revision, Created: true}, nil
}

// rehearsed is the result of a creation that did not happen: the object as it is, with a revision if the client sent one.
func rehearsed(t Target, object runtime.Object) (*Result, error) {
	data, err := t.Version.Codec.Store(object)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return &Result{Object: object, Stored: data, Created: true, Rehearsed: true}, nil
}

// nameChosen is the target with the name of the object, which strategies of kinds that need none choose themselves.
func nameChosen(t Target, object runtime.Object) (Target, error) {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return t, err
	}
	return t.named(accessor.GetName()), nil
}

// unborn refuses to create an object that claims to be stored already. A rehearsal does not look that closely.
func checkNewResourceVersion(object runtime.Object, dryRun bool) error {
	accessor, err := meta.Accessor(object)
	if err != nil || dryRun {
		return err
	}
	revision, err := parseUpdateRevision(accessor.GetResourceVersion())
	if err == nil && revision != 0 {
		return errRevisionOnCreate
	}
	return nil
}

var errRevisionOnCreate = errors.New("resourceVersion should not be set on objects to be created")

// storeNew stores the bytes, or in a dry run only finds out whether they could be stored.
func (r *Registry) storeNew(ctx context.Context, t Target, data []byte, ttl time.Duration,
	options WriteOptions) (int64, error) {
	full := r.admitSize(t, nil, 0, len(data), options)
	if !options.DryRun && full == nil {
		return r.store.Create(ctx, t.path(), data, ttl)
	}
	_, err := r.store.Get(ctx, t.path())
	switch {
	case errors.Is(err, storage.ErrNotFound):
		return 0, full
	case err == nil:
		return 0, storage.ErrExists
	}
	return 0, err
}

// creationError is the status of an error. It tells a client whose name is taken more: that another generated name may be
// free, or that the one who has it is going.
func (r *Registry) creationError(ctx context.Context, t Target, object runtime.Object, err error) error {
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
	if r.isGoing(ctx, t) && errors.As(err, &taken) {
		taken.ErrStatus.Message = "object is being deleted: " + taken.ErrStatus.Message
	}
	return err
}

// isGoing reports whether the target's object is being deleted.
func (r *Registry) isGoing(ctx context.Context, t Target) bool {
	current, err := r.storedState(ctx, t)
	if err != nil || !current.found {
		return false
	}
	object, err := load(t, current)
	if err != nil {
		return false
	}
	accessor, err := meta.Accessor(object)
	return err == nil && accessor.GetDeletionTimestamp() != nil
}

// act does what a create-only endpoint means.
func (r *Registry) act(ctx context.Context, t Target, body runtime.Object, options WriteOptions) (*Result, error) {
	removeDuplicateOwners(ctx, body, duplicateOwners)
	if err := track(t, nil, body, options.Manager); err != nil {
		return nil, err
	}
	if err := r.admit(ctx, r.attributes(ctx, t, admission.Create, body, nil, options)); err != nil {
		return nil, err
	}
	create := &metav1.CreateOptions{FieldManager: options.Manager}
	if options.DryRun {
		create.DryRun = []string{metav1.DryRunAll}
	}
	answer, err := t.Endpoint.Action(ctx, r.Client(), resource.Call{
		Definition: t.Definition,
		Version:    t.Version,
		Namespace:  t.Namespace,
		Name:       t.Name,
		Body:       body,
		Options:    create,
		DryRun:     options.DryRun,
	})
	if err != nil {
		return nil, err
	}
	return &Result{Object: answer, Created: true}, nil
}

// doesWithoutManaged tells whether an object that storage refused is tried again without its managed fields.
func retryWithoutManagedFields(err error, options WriteOptions) bool {
	return errors.Is(err, storage.ErrTooLarge) && !options.applied
}

// encodeUnmanaged makes the bytes of an object that is too large to be stored, without its managed fields: they may be
// most of it, and it can do without.
func encodeUnmanaged(t Target, object runtime.Object) ([]byte, error) {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return nil, err
	}
	accessor.SetManagedFields(nil)
	return encode(t, object)
}

// encode makes the bytes to store. The revision is etcd's and not part of them.
func encode(t Target, object runtime.Object) ([]byte, error) {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return nil, err
	}
	revision := accessor.GetResourceVersion()
	accessor.SetResourceVersion("")
	data, err := t.Version.Codec.Store(object)
	accessor.SetResourceVersion(revision)
	return data, err
}

// removeLink takes the link to itself out of an object: it is never stored. As with kube-apiserver, dry runs show it.
func removeLink(object runtime.Object) {
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

// setRevision writes the revision an object was stored at into its metadata; 0 leaves it empty.
func setRevision(object runtime.Object, revision int64) {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return
	}
	if revision == 0 {
		accessor.SetResourceVersion("")
		return
	}
	accessor.SetResourceVersion(fmt.Sprint(revision))
}
