package registry

import (
	"context"
	"encoding/json"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints/request"

	"quorate.dev/apiserver/audit"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/watchcache"
)

// Client is the registry for the server's own code: objects in the internal version instead of HTTP bodies, and no
// authorization. Admission sees its writes with Attributes.Internal set.
type Client struct {
	registry *Registry
}

var _ resource.Client = &Client{}

// Client returns a client for the server's own code.
func (r *Registry) Client() *Client { return &Client{registry: r} }

// target resolves a key in the preferred version of its resource.
func (c *Client) target(key resource.Key) (Target, error) {
	catalog := c.registry.catalog.Current()
	match, ok := catalog.Find(key.GroupResource)
	if key.Stored {
		if stored, custom := catalog.Stored(key.GroupResource); custom {
			match, ok = stored, true
		}
	}
	if !ok {
		return Target{}, apierrors.NewNotFound(key.GroupResource, key.Name)
	}
	endpoint, ok := match.Version.Endpoints[key.Subresource]
	if !ok {
		return Target{}, apierrors.NewNotFound(key.GroupResource, key.Name)
	}
	return Target{
		Match: match, Endpoint: endpoint, Namespace: key.Namespace, Name: key.Name, Internal: true,
	}, nil
}

// Cache returns the watch cache of a resource, for informers.
func (c *Client) Cache(m resource.Match) *watchcache.Cache { return c.registry.cache(m) }

// withRequestInfo adds the RequestInfo that a client's request would have. Upstream's strategies read it.
func (t Target) withRequestInfo(ctx context.Context, verb string) context.Context {
	return request.WithRequestInfo(ctx, &request.RequestInfo{
		IsResourceRequest: true, Verb: verb, APIGroup: t.Group, APIVersion: t.Version.Name, Resource: t.Plural,
		Subresource: t.Endpoint.Subresource, Namespace: t.Namespace, Name: t.Name,
	})
}

// Get implements resource.Reader. Without Cached it reads storage, which costs one request to etcd but does not wait
// for the cache.
func (c *Client) Get(ctx context.Context, key resource.Key, options resource.ReadOptions) (runtime.Object, error) {
	t, err := c.target(key)
	if err != nil {
		return nil, err
	}
	if options.Cached {
		entry, err := c.registry.Get(ctx, t, "0")
		if err != nil {
			return nil, err
		}
		return c.registry.Decode(ctx, t, entry)
	}
	current, err := c.registry.storedState(ctx, t)
	if err != nil {
		return nil, status(err, t)
	}
	if !current.found {
		return nil, apierrors.NewNotFound(key.GroupResource, key.Name)
	}
	return visibleState(ctx, t, current, false)
}

// List implements resource.Reader.
func (c *Client) List(ctx context.Context, key resource.Key, options resource.ReadOptions) ([]runtime.Object, error) {
	t, err := c.target(key)
	if err != nil {
		return nil, err
	}
	var list ListOptions
	if options.Cached {
		list.ResourceVersion = "0"
	}
	page, err := c.list(ctx, t, list)
	if err != nil {
		return nil, err
	}
	defer page.Close()
	if _, err := watchcache.Convert(ctx, t.Match, page.Entries); err != nil {
		return nil, err
	}
	objects := make([]runtime.Object, len(page.Entries))
	for i, entry := range page.Entries {
		if objects[i], err = c.registry.Decode(ctx, t, entry); err != nil {
			return nil, err
		}
	}
	return objects, nil
}

// list reads the objects of a custom resource without served versions, which has no watch cache, from storage.
func (c *Client) list(ctx context.Context, t Target, options ListOptions) (*List, error) {
	if len(t.Versions) > 0 {
		return c.registry.List(ctx, t, options)
	}
	collection := t.collection()
	l := &listing{registry: c.registry, target: t, options: options, collection: collection, from: collection}
	return l.latestStored(ctx)
}

// Create implements resource.Writer.
func (c *Client) Create(
	ctx context.Context, key resource.Key, object runtime.Object, options resource.WriteOptions,
) (runtime.Object, error) {
	key.Name = "" // the object has it, or generateName
	t, err := c.target(key)
	if err != nil {
		return nil, err
	}
	event := c.registry.beginAudit(ctx, t, "create")
	event.Sends(object)
	created, err := objectOf(c.registry.Create(t.withRequestInfo(ctx, "create"), t, object, internalWrite(ctx, options)))
	event.Complete(created, err)
	return created, err
}

// Update implements resource.Writer.
func (c *Client) Update(
	ctx context.Context, key resource.Key, change func(runtime.Object) error, options resource.WriteOptions,
) (runtime.Object, error) {
	t, err := c.target(key)
	if err != nil {
		return nil, err
	}
	var event *audit.ServerEvent
	audited := func(object runtime.Object) error {
		if err := change(object); err != nil {
			return err // a client would send nothing
		}
		if event == nil {
			event = c.registry.beginAudit(ctx, t, "update")
		}
		event.Sends(object)
		return nil
	}
	object, err := objectOf(c.registry.Update(t.withRequestInfo(ctx, "update"), t, edit{audited}, internalWrite(ctx, options)))
	event.Complete(object, err)
	var failed *editError
	var precondition *resource.PreconditionError
	switch {
	case errors.As(err, &precondition):
		return nil, c.registry.storageConflict(t, precondition.Error(), options.DryRun)
	case errors.As(err, &failed):
		return nil, failed.error
	}
	return object, err
}

// Apply implements resource.Writer.
func (c *Client) Apply(
	ctx context.Context, key resource.Key, configuration any, options resource.WriteOptions,
) (runtime.Object, error) {
	t, err := c.target(key)
	if err != nil {
		return nil, err
	}
	data, err := json.Marshal(configuration)
	if err != nil {
		return nil, err
	}
	write := internalWrite(ctx, options)
	patch := Patch{
		Type: types.ApplyYAMLPatchType, Data: data, Manager: write.Manager, Force: true, Validation: resource.Ignore,
	}
	event := c.registry.beginAudit(ctx, t, "patch")
	event.Patches(data)
	applied, err := objectOf(c.registry.Patch(t.withRequestInfo(ctx, "patch"), t, patch, write))
	event.Complete(applied, err)
	return applied, err
}

// Delete implements resource.Writer.
func (c *Client) Delete(ctx context.Context, key resource.Key, options *metav1.DeleteOptions) error {
	t, err := c.target(key)
	if err != nil {
		return err
	}
	write := WriteOptions{DryRun: options != nil && len(options.DryRun) > 0, Internal: true}
	event := c.registry.beginAudit(ctx, t, "delete")
	_, err = c.registry.Delete(t.withRequestInfo(ctx, "delete"), t, options, write)
	event.Complete(nil, err)
	return err
}

// internalWrite are the options of a write by the server itself.
func internalWrite(ctx context.Context, options resource.WriteOptions) WriteOptions {
	return WriteOptions{DryRun: options.DryRun, Manager: resource.Manager(ctx), Internal: true}
}

func objectOf(result *Result, err error) (runtime.Object, error) {
	if err != nil {
		return nil, err
	}
	return result.Object, nil
}

// editError marks an error of the change function, which Update returns to its caller unchanged.
type editError struct{ error }

func (e *editError) Unwrap() error { return e.error }

// edit is the Change of Client.Update.
type edit struct {
	change func(runtime.Object) error
}

// Apply implements Change.
func (e edit) Apply(ctx context.Context, t Target, current runtime.Object) (runtime.Object, error) {
	if current == nil { // the kind allows create on update, but a change function needs an object
		return nil, apierrors.NewNotFound(t.GroupResource(), t.Name)
	}
	object := current.DeepCopyObject()
	if err := e.change(object); err != nil {
		return nil, &editError{err}
	}
	if t.Endpoint.Action != nil { // its field manager tracks the body
		return object, nil
	}
	return object, track(t, current, object, resource.Manager(ctx))
}

// CreatesMissing implements Change.
func (edit) CreatesMissing() bool { return false }

// UID implements Change.
func (edit) UID() types.UID { return "" }
