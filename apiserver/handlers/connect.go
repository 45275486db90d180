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

// serveConnect serves requests that are proxied. The name is not validated here, because it may contain a scheme and a
// port, which the backend parses.
func (c *call) serveConnect() {
	if !slices.Contains(c.target.Endpoint.Connect.Methods, c.r.Method) {
		request.WriteError(c.w, c.r, c.notAllowed())
		return
	}
	if err := c.connect(c.r.Context()); err != nil {
		request.WriteError(c.w, c.r, err)
	}
}

// connect passes the request to the endpoint's backend, which may hijack the connection.
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

// acceptable checks the Accept header of a log as kube-apiserver does twice: its route produces text/plain as well, but
// the handler then negotiates a media type of objects.
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

// connectQuery returns the query, with the rest of the path after the subresource as the option "path".
func (c *call) connectQuery() url.Values {
	query := c.record.Query()
	if !c.target.Endpoint.Connect.Path {
		return query
	}
	info := &c.record.Info
	const own = 3 // resource, name, subresource
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
