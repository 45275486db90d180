package aggregator

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/transport"
)

// These are the users that kube-aggregator sends in its own requests.
const (
	aggregatorUser = "system:kube-aggregator"
	openAPIUser    = "system:aggregator"
)

var errUnavailable = errors.New("service unavailable")

// Fetch sends a GET request for a document as kube-aggregator does, and follows no redirects. The caller must close
// the body of the response. While the APIService is not available, requests for OpenAPI documents fail immediately;
// requests for discovery are sent, so that clients find a group as soon as its server responds.
func (b *Backend) Fetch(ctx context.Context, path string, header http.Header) (*http.Response, error) {
	name, groups := aggregatorUser, []string(nil)
	switch {
	case strings.HasPrefix(path, "/openapi/"):
		if !b.Available {
			return nil, errUnavailable
		}
		name = openAPIUser
	case path == "/apis":
		groups = []string{user.SystemPrivilegedGroup}
	}
	connections, err := b.pool()
	if err != nil {
		return nil, err
	}
	location, err := b.resolve()
	if err != nil {
		return nil, fmt.Errorf("resolve the Service of %s: %w", b.Name, err)
	}
	location.Path = path
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, location.String(), http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("request %s of %s: %w", path, b.Name, err)
	}
	if header != nil {
		r.Header = header.Clone()
	}
	transport.SetAuthProxyHeaders(r, name, "", groups, nil)
	response, err := connections.inspected.RoundTrip(r)
	if err != nil {
		return nil, fmt.Errorf("request %s of %s: %w", path, b.Name, err)
	}
	return response, nil
}

// probeTimeout bounds a probe, as in kube-aggregator.
const probeTimeout = 5 * time.Second

// Probe requests the resource list of the group version, whether the APIService is available or not. It mirrors the
// discovery check of kube-aggregator's AvailableConditionController, whose errors become messages of conditions.
//
// The timeout is set only in the context. With an additional timeout of the http.Client, net/http would choose between
// two error messages at random, and the condition of a server that does not respond would be written at every other
// check.
func (b *Backend) Probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	connections, err := b.pool()
	if err != nil {
		return err
	}
	location, err := b.resolve()
	if err != nil {
		return err
	}
	location.Path = "/apis/" + b.Group + "/" + b.Version
	if b.Group == "" {
		location.Path = "/api/" + b.Version
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, location.String(), http.NoBody)
	if err != nil {
		return fmt.Errorf("failing or missing response from %v: %w", location, err)
	}
	transport.SetAuthProxyHeaders(r, aggregatorUser, "", []string{user.SystemPrivilegedGroup}, nil)
	client := &http.Client{Transport: connections.transport, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}
	response, err := client.Do(r)
	if err == nil {
		_ = response.Body.Close() // only the status matters
		if response.StatusCode >= http.StatusOK && response.StatusCode < http.StatusMultipleChoices {
			return nil
		}
		err = fmt.Errorf("bad status from %v: %d", location, response.StatusCode)
	}
	utilnet.CloseIdleConnectionsFor(connections.transport)
	return fmt.Errorf("failing or missing response from %v: %w", location, err)
}
