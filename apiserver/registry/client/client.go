package client

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/audit"
	"quorate.dev/apiserver/registry"
	"quorate.dev/apiserver/registry/change"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/watchcache"
	"quorate.dev/writelimit"
)

// Client is the registry for the server's own code: objects in the internal version instead of HTTP bodies, and no
// authorization. Admission sees its writes with Attributes.Internal set. It is immutable and safe for concurrent use.
type Client struct {
	options Options
	writer  string // name of the controller; "" for writes that are part of clients' requests
}

var _ resource.Client = &Client{}

// Options are the dependencies of a Client.
type Options struct {
	Registry *registry.Registry
	// Auditor records the writes; nil: they are not audited.
	Auditor *audit.Auditor
	// Permit returns the error of a write that must not be made yet; nil permits all writes.
	Permit func(t resource.Target, verb string) error
	Clock  clock.Clock
	Logger logr.Logger
}

// New returns a client without a name, whose writes are part of clients' requests.
func New(options Options) *Client { return &Client{options: options} }

// Named returns a client for the controller named writer. The client's writes are limited and counted under that name.
func (c *Client) Named(writer string) *Client { return &Client{options: c.options, writer: writer} }

// writeContext returns the context of a write, with the name of the controller if the client has one.
func (c *Client) writeContext(ctx context.Context) context.Context {
	if c.writer == "" {
		return ctx
	}
	return writelimit.WithWriter(ctx, c.writer)
}

// writeTarget returns the target of a write, or an error if there is none or the write is not permitted.
func (c *Client) writeTarget(key resource.Key, verb string) (resource.Target, error) {
	t, err := c.options.Registry.Target(key)
	if err == nil && c.options.Permit != nil {
		err = c.options.Permit(t, verb)
	}
	return t, err
}

// Cache returns the watch cache of a resource, for informers.
func (c *Client) Cache(m resource.Match) *watchcache.Cache { return c.options.Registry.Cache(m) }

// withRequestInfo adds the RequestInfo that a client's request would have. Upstream's strategies read it.
func withRequestInfo(ctx context.Context, t resource.Target, verb string) context.Context {
	return request.WithRequestInfo(ctx, &request.RequestInfo{
		IsResourceRequest: true, Verb: verb, APIGroup: t.Group, APIVersion: t.Version.Name, Resource: t.Plural,
		Subresource: t.Endpoint.Subresource, Namespace: t.Namespace, Name: t.Name,
	})
}

// Get implements resource.Reader. Without Cached it reads storage, which costs one request to etcd but does not wait
// for the cache.
func (c *Client) Get(ctx context.Context, key resource.Key, options resource.ReadOptions) (runtime.Object, error) {
	t, err := c.options.Registry.Target(key)
	if err != nil {
		return nil, err
	}
	if options.Cached {
		entry, err := c.options.Registry.Get(ctx, t, "0")
		if err != nil {
			return nil, err
		}
		return c.options.Registry.Decode(ctx, t, entry)
	}
	return c.options.Registry.ReadStored(ctx, t)
}

// List implements resource.Reader.
func (c *Client) List(ctx context.Context, key resource.Key, options resource.ReadOptions) ([]runtime.Object, error) {
	t, err := c.options.Registry.Target(key)
	if err != nil {
		return nil, err
	}
	var list registry.ListOptions
	if options.Cached {
		list.ResourceVersion = "0"
	}
	page, err := c.options.Registry.List(ctx, t, list)
	if err != nil {
		return nil, err
	}
	defer page.Close()
	if _, err := watchcache.Convert(ctx, t.Match, page.Entries); err != nil {
		return nil, err
	}
	objects := make([]runtime.Object, len(page.Entries))
	for i, entry := range page.Entries {
		if objects[i], err = c.options.Registry.Decode(ctx, t, entry); err != nil {
			return nil, err
		}
	}
	return objects, nil
}

// Create implements resource.Writer.
func (c *Client) Create(
	ctx context.Context, key resource.Key, object runtime.Object, options resource.WriteOptions,
) (runtime.Object, error) {
	key.Name = "" // the object has it, or generateName
	ctx = c.writeContext(ctx)
	t, err := c.writeTarget(key, "create")
	if err != nil {
		return nil, err
	}
	event := c.beginAudit(ctx, t, "create")
	event.Sends(object)
	created, err :=
		objectOf(c.options.Registry.Create(withRequestInfo(ctx, t, "create"), t, object, internalWrite(ctx, options)))
	event.Complete(created, err)
	return created, err
}

// Update implements resource.Writer.
func (c *Client) Update(
	ctx context.Context, key resource.Key, edit func(runtime.Object) error, options resource.WriteOptions,
) (runtime.Object, error) {
	ctx = c.writeContext(ctx)
	t, err := c.writeTarget(key, "update")
	if err != nil {
		return nil, err
	}
	var event *audit.ServerEvent
	audited := func(object runtime.Object) error {
		if err := edit(object); err != nil {
			return err // a client would send nothing
		}
		if event == nil {
			event = c.beginAudit(ctx, t, "update")
		}
		event.Sends(object)
		return nil
	}
	object, err :=
		objectOf(c.options.Registry.Update(withRequestInfo(ctx, t, "update"), t, change.Edit(audited),
			internalWrite(ctx, options)))
	event.Complete(object, err)
	var failed *change.EditError
	var precondition *resource.PreconditionError
	switch {
	case errors.As(err, &precondition):
		return nil, c.options.Registry.StorageConflict(t, precondition.Error(), options.DryRun)
	case errors.As(err, &failed):
		return nil, failed.Err
	}
	return object, err
}

// Apply implements resource.Writer.
func (c *Client) Apply(
	ctx context.Context, key resource.Key, configuration any, options resource.WriteOptions,
) (runtime.Object, error) {
	ctx = c.writeContext(ctx)
	t, err := c.writeTarget(key, "patch")
	if err != nil {
		return nil, err
	}
	data, err := json.Marshal(configuration)
	if err != nil {
		return nil, err
	}
	write := internalWrite(ctx, options)
	patch := change.Patch{
		Type: types.ApplyYAMLPatchType, Data: data, Manager: write.Manager, Force: true, Validation: resource.Ignore,
	}
	event := c.beginAudit(ctx, t, "patch")
	event.Patches(data)
	applied, err := objectOf(c.options.Registry.Patch(withRequestInfo(ctx, t, "patch"), t, patch, write))
	event.Complete(applied, err)
	return applied, err
}

// Delete implements resource.Writer.
func (c *Client) Delete(ctx context.Context, key resource.Key, options *metav1.DeleteOptions) error {
	ctx = c.writeContext(ctx)
	t, err := c.writeTarget(key, "delete")
	if err != nil {
		return err
	}
	if options == nil {
		options = &metav1.DeleteOptions{}
	}
	write := registry.WriteOptions{DryRun: len(options.DryRun) > 0, Internal: true}
	event := c.beginAudit(ctx, t, "delete")
	_, err = c.options.Registry.Delete(withRequestInfo(ctx, t, "delete"), t, options, write)
	event.Complete(nil, err)
	return err
}

// internalWrite returns the options of a write by the server itself.
func internalWrite(ctx context.Context, options resource.WriteOptions) registry.WriteOptions {
	return registry.WriteOptions{DryRun: options.DryRun, Manager: resource.Manager(ctx), Internal: true}
}

// objectOf returns the object of a result. It is the object as it was written, without Definition.Decorate.
func objectOf(result *registry.Result, err error) (runtime.Object, error) {
	if err != nil {
		return nil, err
	}
	return result.Object, nil
}
