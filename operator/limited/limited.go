// Package limited bounds the operator's writes of each object.
package limited

import (
	"context"
	"fmt"
	"reflect"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/writelimit"
)

// Limit bounds the writes of one object by one controller. It exceeds the number of writes in any rollout of a cluster,
// and is far below the rate at which a controller in an endless loop of failures would write.
var Limit = writelimit.Limit{Burst: 300, PerHour: 720}

// Help is the help of the counter of writes.
const Help = "Number of writes by the operator's controllers, by writer and result: permitted, or refused because " +
	"the controller has written the object too often."

// Client is a client whose writes are limited. A write that fails counts too; a dry run does not.
type Client struct {
	client.Client
	limiter *writelimit.Limiter
	writer  string
	cluster string // address of the cluster that contains the objects; "" for the hosting cluster
}

// New returns a client of a controller for the hosting cluster.
func New(c client.Client, limiter *writelimit.Limiter, writer string) *Client {
	return &Client{Client: c, limiter: limiter, writer: writer}
}

// Connect returns a function that connects to a cluster that the operator manages, with a client of a controller.
func Connect(
	connect func(*rest.Config) (client.Client, error), limiter *writelimit.Limiter, writer string,
) func(*rest.Config) (client.Client, error) {
	return func(config *rest.Config) (client.Client, error) {
		c, err := connect(config)
		if err != nil {
			return nil, err
		}
		return &Client{Client: c, limiter: limiter, writer: writer, cluster: config.Host + ": "}, nil
	}
}

// acquire takes a token of the limiter for one write, or returns an error if the limit is exceeded. The limit applies
// to an object's UID. Before an object has a UID, as in a create request, it applies to its name, so that repeated
// creation counts as writes of one object.
func (c *Client) acquire(object client.Object, dryRun []string) error {
	if len(dryRun) > 0 {
		return nil
	}
	name := object.GetName()
	if name == "" {
		name = object.GetGenerateName() + "*"
	}
	kind := reflect.TypeOf(object).Elem().Name()
	if id := object.GetUID(); id != "" {
		name += " with UID " + string(id)
	}
	return c.limiter.Take(c.writer, fmt.Sprintf("%s%s %s/%s", c.cluster, kind, object.GetNamespace(), name))
}

// Create implements client.Writer.
func (c *Client) Create(ctx context.Context, object client.Object, options ...client.CreateOption) error {
	all := client.CreateOptions{}
	if err := c.acquire(object, all.ApplyOptions(options).DryRun); err != nil {
		return err
	}
	return c.Client.Create(ctx, object, options...)
}

// Update implements client.Writer.
func (c *Client) Update(ctx context.Context, object client.Object, options ...client.UpdateOption) error {
	all := client.UpdateOptions{}
	if err := c.acquire(object, all.ApplyOptions(options).DryRun); err != nil {
		return err
	}
	return c.Client.Update(ctx, object, options...)
}

// Patch implements client.Writer.
func (c *Client) Patch(
	ctx context.Context, object client.Object, patch client.Patch, options ...client.PatchOption,
) error {
	all := client.PatchOptions{}
	if err := c.acquire(object, all.ApplyOptions(options).DryRun); err != nil {
		return err
	}
	return c.Client.Patch(ctx, object, patch, options...)
}

// Delete implements client.Writer.
func (c *Client) Delete(ctx context.Context, object client.Object, options ...client.DeleteOption) error {
	all := client.DeleteOptions{}
	if err := c.acquire(object, all.ApplyOptions(options).DryRun); err != nil {
		return err
	}
	return c.Client.Delete(ctx, object, options...)
}

// Status implements client.StatusClient.
func (c *Client) Status() client.SubResourceWriter { return statusWriter{c.Client.Status(), c} }

// statusWriter writes the status of objects.
type statusWriter struct {
	client.SubResourceWriter
	client *Client
}

// Update implements client.SubResourceWriter.
func (w statusWriter) Update(
	ctx context.Context, object client.Object, options ...client.SubResourceUpdateOption,
) error {
	all := client.SubResourceUpdateOptions{}
	if err := w.client.acquire(object, all.ApplyOptions(options).DryRun); err != nil {
		return err
	}
	return w.SubResourceWriter.Update(ctx, object, options...)
}

// Patch implements client.SubResourceWriter.
func (w statusWriter) Patch(
	ctx context.Context, object client.Object, patch client.Patch, options ...client.SubResourcePatchOption,
) error {
	all := client.SubResourcePatchOptions{}
	if err := w.client.acquire(object, all.ApplyOptions(options).DryRun); err != nil {
		return err
	}
	return w.SubResourceWriter.Patch(ctx, object, patch, options...)
}
