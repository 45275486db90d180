package handlers

import (
	"context"
	"maps"
	"net/url"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

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
		if _, err := negotiate(c.r, c.target); err != nil {
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
