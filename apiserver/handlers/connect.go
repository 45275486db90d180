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

// serveConnect serves a connect request, which is proxied to a backend. The name is not validated here: it may contain
// a scheme and a port, which the backend parses.
func (c *call) serveConnect() {
	if !slices.Contains(c.target.Endpoint.Connect.Methods, c.r.Method) {
		request.WriteError(c.w, c.r, c.notAllowed())
		return
	}
	if err := c.connect(c.r.Context()); err != nil {
		request.WriteError(c.w, c.r, err)
	}
}

// connect passes the request to the handler of the endpoint's backend, which may hijack the connection.
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

// acceptable checks the Accept header of a request for logs. As in kube-apiserver, the header must pass two checks: the
// route, which also produces text/plain, and the negotiation of the handler, which offers only the media types of
// objects.
func (c *call) acceptable() error {
	header := c.r.Header.Get("Accept")
	if header == "" {
		return nil
	}
	if err := request.Produce(c.r, append([]string{"text/plain"}, produced(false)...)...); err != nil {
		return err
	}
	if _, ok := negotiation.NegotiateMediaTypeOptions(header, serializers(), restrictions{}); ok {
		return nil
	}
	return negotiation.NewNotAcceptableError(offered(c.target))
}

// connectQuery returns the query. If the endpoint proxies paths, the parameter "path" is the part of the URL path that
// follows the subresource.
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
