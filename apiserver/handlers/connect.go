package handlers

import (
	"context"
	"maps"
	"net/url"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"

	"quorate.dev/apiserver/request"
)

// serveConnect answers a request that goes on to somebody else. Who that is looks at the name, which may say more than
// a name.
func (c *call) serveConnect() {
	if !slices.Contains(c.target.Endpoint.Connect.Methods, c.r.Method) {
		request.WriteError(c.w, c.r, c.notAllowed())
		return
	}
	if err := c.connect(c.r.Context()); err != nil {
		request.WriteError(c.w, c.r, err)
	}
}

// connect hands the request on to whoever answers it, with the connection itself if they want it.
func (c *call) connect(ctx context.Context) error {
	connect := c.target.Endpoint.Connect
	if connect.Reads {
		if err := c.acceptable(); err != nil {
			return err
		}
	}
	if !connect.Reads && len(c.record.Query()["dryRun"]) > 0 {
		return apierrors.NewBadRequest("dryRun is not supported")
	}
	options, err := connect.Options(c.connectQuery())
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	handler, err := c.Registry.Connect(ctx, c.target, options)
	if err != nil {
		return err
	}
	handler.ServeHTTP(c.w, c.r)
	return nil
}

// acceptable looks at what the client accepts as kube-apiserver does: the route of a log produces text too, and then a
// format of objects must be among what the client accepts.
func (c *call) acceptable() error {
	header := c.r.Header.Get("Accept")
	if header == "" {
		return nil
	}
	if err := request.Produce(c.r, append([]string{"text/plain"}, produced(false)...)...); err != nil {
		return err
	}
	if _, ok := negotiation.NegotiateMediaTypeOptions(header, serializers, restrictions{}); ok {
		return nil
	}
	return negotiation.NewNotAcceptableError(offered(c.target))
}

// connectQuery is the query, with what follows the endpoint in the path as the option "path".
func (c *call) connectQuery() url.Values {
	query := c.record.Query()
	if !c.target.Endpoint.Connect.Path {
		return query
	}
	info := &c.record.Info
	const own = 3 // the resource, the name and the subresource
	path := strings.Join(info.Parts[own:], "/")
	if path != "" && !strings.HasPrefix(path, "/") {
		path = "/" + path
	}
	if strings.HasSuffix(info.Path, "/") && !strings.HasSuffix(path, "/") {
		path += "/"
	}
	query = maps.Clone(query)
	if query == nil {
		query = url.Values{}
	}
	query["path"] = []string{path}
	return query
}
