package aggregator

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/transport"
)

// The users of requests for documents, as in kube-aggregator.
var (
	// DiscoveryUser requests aggregated discovery.
	DiscoveryUser user.Info = &user.DefaultInfo{Name: "system:kube-aggregator", Groups: []string{user.SystemPrivilegedGroup}}
	// LegacyDiscoveryUser requests the resource list of a group version.
	LegacyDiscoveryUser user.Info = &user.DefaultInfo{Name: "system:kube-aggregator"}
	// OpenAPIUser requests OpenAPI documents.
	OpenAPIUser user.Info = &user.DefaultInfo{Name: "system:aggregator"}
)

// fetchTimeout bounds Fetch. It is kube-aggregator's timeout for OpenAPI documents.
const fetchTimeout = time.Minute

var errTooLarge = errors.New("the response is too large")

// Response is a response that was read completely.
type Response struct {
	Status int
	Header http.Header
	Body   []byte
}

// Fetch sends a GET as the given user, whether the backend is available or not, and follows no redirects. A response of
// more than limit bytes is an error. The time is bounded, also without a deadline of ctx.
func (b *Backend) Fetch(
	ctx context.Context, path string, header http.Header, as user.Info, limit int64,
) (*Response, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	location, err := b.locate(path, "")
	if err != nil {
		return nil, fmt.Errorf("resolve the service of %s: %w", b.Name, err)
	}
	tripper, err := b.transport()
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, location.String(), http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("request %s of %s: %w", path, b.Name, err)
	}
	if header != nil {
		r.Header = header.Clone()
	}
	transport.SetAuthProxyHeaders(r, as.GetName(), as.GetUID(), as.GetGroups(), as.GetExtra())
	answer, err := tripper.RoundTrip(r)
	if err != nil {
		return nil, fmt.Errorf("request %s of %s: %w", path, b.Name, err)
	}
	defer func() { _ = answer.Body.Close() }() // read completely, or abandoned
	body, err := io.ReadAll(io.LimitReader(answer.Body, limit+1))
	if err == nil && int64(len(body)) > limit {
		err = errTooLarge
	}
	if err != nil {
		return nil, fmt.Errorf("read %s of %s: %w", path, b.Name, err)
	}
	return &Response{Status: answer.StatusCode, Header: answer.Header, Body: body}, nil
}
