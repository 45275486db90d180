// Package transport protects this server from the servers to which it sends requests, such as webhooks and token
// issuers: it limits the size of their responses and of the errors that are logged, and does not follow redirects.
package transport

import (
	"errors"
	"fmt"
	"io"
	"net/http"
)

// Limits of responses, in bytes.
const (
	// MaxReview bounds the responses of webhooks that authenticate, authorize or accept audit events.
	MaxReview = 1 << 20
	// maxError bounds the bodies of responses that are not successful, which clients copy into errors and logs.
	maxError = 8 << 10
)

var (
	// ErrRedirect is returned for a redirect. kube-apiserver follows redirects, and thus sends credentials or objects to
	// servers that are not in its configuration.
	ErrRedirect = errors.New("the server redirects, and redirects are not followed")
	// ErrTooLarge is returned if a response exceeds its limit.
	ErrTooLarge = errors.New("the response exceeds the limit")
)

// Limit returns a transport that limits responses; client-go has no limits. A response fails if its decompressed body
// has more than max bytes, or if it is a redirect. The bodies of other unsuccessful responses are truncated.
func Limit(next http.RoundTripper, max int64) http.RoundTripper {
	return limited{next, max, true}
}

// Reviews limits the responses of webhooks that review requests. It is a transport.WrapperFunc of client-go.
func Reviews(next http.RoundTripper) http.RoundTripper { return Limit(next, MaxReview) }

// LimitSize limits only the size of responses. It is for clients that fetch public documents, and these follow
// redirects.
func LimitSize(next http.RoundTripper, max int64) http.RoundTripper {
	return limited{next, max, false}
}

type limited struct {
	http.RoundTripper
	max              int64
	refusesRedirects bool
}

// RoundTrip implements http.RoundTripper.
func (l limited) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := l.RoundTripper.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if l.refusesRedirects && response.StatusCode/100 == 3 && response.Header.Get("Location") != "" {
		response.Body.Close()
		return nil, ErrRedirect
	}
	if response.StatusCode >= http.StatusBadRequest {
		response.Body = truncatedBody{io.LimitReader(response.Body, maxError), response.Body}
		return response, nil
	}
	response.Body = &limitedBody{
		ReadCloser: response.Body, left: l.max, err: fmt.Errorf("%w of %d bytes", ErrTooLarge, l.max),
	}
	return response, nil
}

// WrappedRoundTripper returns the wrapped transport, as client-go's net.RoundTripperWrapper requires.
func (l limited) WrappedRoundTripper() http.RoundTripper { return l.RoundTripper }

// truncatedBody is a body that ends after a number of bytes, without an error.
type truncatedBody struct {
	io.Reader
	io.Closer
}

// limitedBody is a body that fails with err if it has more than left bytes.
type limitedBody struct {
	io.ReadCloser
	left int64
	err  error
}

// Read implements io.Reader.
func (b *limitedBody) Read(p []byte) (int, error) {
	if int64(len(p)) > b.left+1 {
		p = p[:b.left+1]
	}
	n, err := b.ReadCloser.Read(p)
	if int64(n) > b.left {
		n, b.left = int(b.left), 0
		return n, b.err
	}
	b.left -= int64(n)
	return n, err
}
