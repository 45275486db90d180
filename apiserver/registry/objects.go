package registry

import (
	"context"
	"encoding/json"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"

	"quorate.dev/apiserver/encoding"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/watchcache"
)

var (
	_ resource.Objects = &Registry{}
	_ resource.Applier = &Registry{}
)

// target resolves a group and resource in the preferred version.
func (r *Registry) target(name schema.GroupResource, subresource, namespace, object string) (Target, error) {
	match, ok := r.catalog.Current().Find(name)
	if !ok {
		return Target{}, apierrors.NewNotFound(name, object)
	}
	endpoint, ok := match.Version.Endpoints[subresource]
	if !ok {
		return Target{}, apierrors.NewNotFound(name, object)
	}
	return Target{Match: match, Endpoint: endpoint, Namespace: namespace, Name: object}, nil
}

// asRequest tells upstream's strategies, which look it up in the context, what is written, when no client's request
// does.
func (t Target) asRequest(ctx context.Context, verb string) context.Context {
	return request.WithRequestInfo(ctx, &request.RequestInfo{
		IsResourceRequest: true, Verb: verb, APIGroup: t.Group, APIVersion: t.Version.Name, Resource: t.Plural,
		Subresource: t.Endpoint.Subresource, Namespace: t.Namespace, Name: t.Name,
	})
}

// Get implements resource.Objects.
func (r *Registry) Get(ctx context.Context, name schema.GroupResource, namespace, object string) (runtime.Object, error) {
	t, err := r.target(name, "", namespace, object)
	if err != nil {
		return nil, err
	}
	current, err := r.storedState(ctx, t)
	if err != nil {
		return nil, status(err, t)
	}
	if !current.found {
		return nil, apierrors.NewNotFound(name, object)
	}
	return shown(t, current, false)
}

// GetCached implements resource.Objects.
func (r *Registry) GetCached(ctx context.Context, name schema.GroupResource, namespace, object string) (runtime.Object, error) {
	t, err := r.target(name, "", namespace, object)
	if err != nil {
		return nil, err
	}
	entry, err := r.Read(ctx, t, "0")
	if err != nil {
		return nil, err
	}
	return r.Decode(t, entry)
}

// Internal decodes an entry as it is shown. The object belongs to the caller.
func (r *Registry) Decode(t Target, entry *watchcache.Entry) (runtime.Object, error) {
	return shown(t, state{data: entry.Stored(), revision: entry.Revision()}, false)
}

// shown decodes a state as clients, and the server's own parts, are shown it.
func shown(t Target, current state, undecorated bool) (runtime.Object, error) {
	internal, err := load(t, current)
	if err == nil && t.Decorate != nil && !undecorated && !t.Endpoint.Undecorated {
		t.Decorate(internal)
	}
	return internal, err
}

// Stored decodes what a write has left in storage, as it is shown. The object belongs to the caller.
func (r *Registry) Stored(t Target, result *Result) (runtime.Object, error) {
	return shown(t, state{data: result.Stored, revision: result.Revision}, result.Undecorated)
}

// Offer hands the encoding that was made for the answer to a write to the cache, for others who ask for it. What is not
// in storage is nobody else's business.
func (r *Registry) Offer(t Target, result *Result, format encoding.Format, item []byte) {
	if result.Rehearsed || result.Deleted {
		return
	}
	accessor, err := meta.Accessor(result.Object)
	if err != nil {
		return
	}
	r.cache(t.Match).Offer(t.named(accessor.GetName()).path(), result.Revision, format, item)
}

// List implements resource.Objects.
func (r *Registry) List(ctx context.Context, name schema.GroupResource, namespace string) ([]runtime.Object, error) {
	return r.listed(ctx, name, namespace, ListOptions{ResourceVersion: "0"})
}

func (r *Registry) listed(ctx context.Context, name schema.GroupResource, namespace string, options ListOptions) ([]runtime.Object, error) {
	t, err := r.target(name, "", namespace, "")
	if err != nil {
		return nil, err
	}
	page, err := r.ReadList(ctx, t, options)
	if err != nil {
		return nil, err
	}
	defer page.Close()
	objects := make([]runtime.Object, len(page.Entries))
	for i, entry := range page.Entries {
		if objects[i], err = r.Decode(t, entry); err != nil {
			return nil, err
		}
	}
	return objects, nil
}

// Latest implements resource.Objects.
func (r *Registry) Latest(ctx context.Context, name schema.GroupResource, namespace string) ([]runtime.Object, error) {
	return r.listed(ctx, name, namespace, ListOptions{})
}

// Create implements resource.Objects.
func (r *Registry) Create(ctx context.Context, name schema.GroupResource, namespace string, object runtime.Object, dryRun bool) (runtime.Object, error) {
	t, err := r.target(name, "", namespace, "")
	if err != nil {
		return nil, err
	}
	result, err := r.Insert(t.asRequest(ctx, "create"), t, object, WriteOptions{DryRun: dryRun, Manager: resource.Manager(ctx), Internal: true})
	if err != nil {
		return nil, err
	}
	return result.Object, nil
}

// Update implements resource.Objects.
func (r *Registry) Update(ctx context.Context, name schema.GroupResource, subresource, namespace, object string, change func(runtime.Object) error, dryRun bool) (runtime.Object, error) {
	t, err := r.target(name, subresource, namespace, object)
	if err != nil {
		return nil, err
	}
	result, err := r.Write(t.asRequest(ctx, "update"), t, edit{change}, WriteOptions{DryRun: dryRun, Manager: resource.Manager(ctx), Internal: true})
	var own *editError
	var unmet *resource.PreconditionError
	if errors.As(err, &unmet) {
		return nil, r.storageConflict(t, unmet.Error(), dryRun)
	}
	if errors.As(err, &own) {
		return nil, own.error
	}
	if err != nil {
		return nil, err
	}
	return result.Object, nil
}

// editError is an error of the caller's own, to be given back as it is.
type editError struct{ error }

func (e *editError) Unwrap() error { return e.error }

// edit is the Change of the server's own code.
type edit struct {
	change func(runtime.Object) error
}

func (e edit) Apply(ctx context.Context, t Target, current runtime.Object) (runtime.Object, error) {
	if current == nil { // of a kind that an update may create; a change needs something to change
		return nil, apierrors.NewNotFound(t.GroupResource(), t.Name)
	}
	object := current.DeepCopyObject()
	if err := e.change(object); err != nil {
		return nil, &editError{err}
	}
	return object, track(t, current, object, resource.Manager(ctx))
}

func (edit) CreatesMissing() bool { return false }

func (edit) UID() types.UID { return "" }

// Apply implements resource.Applier.
func (r *Registry) Apply(ctx context.Context, name schema.GroupResource, subresource, namespace, object string, configuration any) (runtime.Object, error) {
	t, err := r.target(name, subresource, namespace, object)
	if err != nil {
		return nil, err
	}
	data, err := json.Marshal(configuration)
	if err != nil {
		return nil, err
	}
	patch := Patch{Type: types.ApplyYAMLPatchType, Data: data, Manager: resource.Manager(ctx), Force: true, Validation: resource.Ignore}
	result, err := r.Write(t.asRequest(ctx, "patch"), t, patch, WriteOptions{Manager: patch.Manager, Internal: true})
	if err != nil {
		return nil, err
	}
	return result.Object, nil
}

// Delete implements resource.Objects.
func (r *Registry) Delete(ctx context.Context, name schema.GroupResource, namespace, object string, options *metav1.DeleteOptions) error {
	t, err := r.target(name, "", namespace, object)
	if err != nil {
		return err
	}
	_, err = r.Remove(t.asRequest(ctx, "delete"), t, options, WriteOptions{DryRun: options != nil && len(options.DryRun) > 0, Internal: true})
	return err
}

// mayCreate asks whether the user may create what an update would create.
func (r *Registry) mayCreate(ctx context.Context, t Target) error {
	who, ok := request.UserFrom(ctx)
	if !ok {
		return nil // the server itself
	}
	attributes := authorizer.AttributesRecord{
		User: who, ResourceRequest: true, Verb: "create", APIGroup: t.Group, APIVersion: t.Version.Name,
		Resource: t.Plural, Subresource: t.Endpoint.Subresource, Namespace: t.Namespace, Name: t.Name,
	}
	decision, reason, err := r.authorizer.Authorize(ctx, attributes)
	if decision == authorizer.DecisionAllow {
		return nil
	}
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	return forbidden(t, who, reason)
}

func forbidden(t Target, who user.Info, reason string) error {
	message := "User \"" + who.GetName() + "\" cannot create resource \"" + t.Plural + "\" in API group \"" + t.Group + "\""
	if t.Namespace != "" {
		message += " in the namespace \"" + t.Namespace + "\""
	} else {
		message += " at the cluster scope"
	}
	if reason != "" {
		message += ": " + reason
	}
	return apierrors.NewForbidden(t.GroupResource(), t.Name, errors.New(message))
}
