package crd

import (
	"fmt"
	"io"
	"net/http"

	"k8s.io/apiextensions-apiserver/pkg/apiserver/conversion"
	utilwebhook "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"
)

// maxAnswer bounds the bytes of a conversion webhook's answer. kube-apiserver has no limit. A call has objects of a few
// MiB, so that answers within reason are far smaller.
const maxAnswer = 64 << 20

// NewConverters returns the converters of definitions with conversion webhooks, which services finds.
func NewConverters(services utilwebhook.ServiceResolver) (Converters, error) {
	return conversion.NewCRConverterFactory(services, func(of utilwebhook.AuthenticationInfoResolver) utilwebhook.AuthenticationInfoResolver {
		return limitingResolver{of}
	})
}

// limitingResolver limits the answers of webhooks.
type limitingResolver struct {
	of utilwebhook.AuthenticationInfoResolver
}

// ClientConfigFor implements webhook.AuthenticationInfoResolver.
func (r limitingResolver) ClientConfigFor(hostPort string) (*rest.Config, error) {
	return limited(r.of.ClientConfigFor(hostPort))
}

// ClientConfigForService implements webhook.AuthenticationInfoResolver.
func (r limitingResolver) ClientConfigForService(name, namespace string, port int) (*rest.Config, error) {
	return limited(r.of.ClientConfigForService(name, namespace, port))
}

func limited(config *rest.Config, err error) (*rest.Config, error) {
	if err != nil {
		return nil, err
	}
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return limitingTransport{next} })
	return config, nil
}

// limitingTransport fails the reading of a response after maxAnswer bytes.
type limitingTransport struct {
	next http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (t limitingTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := t.next.RoundTrip(request)
	if err == nil {
		response.Body = &limitedBody{ReadCloser: response.Body, left: maxAnswer}
	}
	return response, err
}

type limitedBody struct {
	io.ReadCloser
	left int64
}

// Read implements io.Reader.
func (b *limitedBody) Read(to []byte) (int, error) {
	n, err := b.ReadCloser.Read(to)
	if b.left -= int64(n); b.left < 0 {
		return 0, fmt.Errorf("the answer has more than %d bytes", int64(maxAnswer))
	}
	return n, err
}
