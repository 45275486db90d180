package serviceresolver

import (
	"errors"
	"fmt"
	"io"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"
)

// The Service of this server, as webhooks name it.
const (
	kubernetesService  = "kubernetes"
	kubernetesPort     = 443
	kubernetesHostPort = "kubernetes.default.svc:443"
)

// Clients configure the clients of webhooks.
type Clients struct {
	// Local sends requests to this server without a connection, as a privileged user. If it is nil, the Service of this
	// server is called like any other.
	Local http.RoundTripper
	// ControlPlane connects to webhooks with URLs, Cluster to those behind Services; nil: directly.
	ControlPlane, Cluster utilnet.DialFunc
	// Trace wraps the transports to trace requests; nil: not traced.
	Trace func(http.RoundTripper) http.RoundTripper
	// MaxResponse is the limit of the bytes of a response. client-go has none.
	MaxResponse int64
}

// Clients refuse redirects, which kube-apiserver's follow: a review may contain a Secret, and its receiver is the one that
// the configuration names.
var errRedirect = errors.New("the webhook redirects, and redirects are not followed")

// Wrap implements webhook.AuthenticationInfoResolverWrapper. A webhook that names the Service default/kubernetes is called
// through Local, whatever the kubeconfig says: kube-apiserver uses its loopback client, so that aggregated API servers
// can serve webhooks.
func (c Clients) Wrap(delegate webhook.AuthenticationInfoResolver) webhook.AuthenticationInfoResolver {
	// A Transport would be refused together with a caBundle, which a wrapped transport ignores.
	local := &rest.Config{WrapTransport: func(http.RoundTripper) http.RoundTripper { return c.limit(c.Local) }}
	return &webhook.AuthenticationInfoResolverDelegator{
		ClientConfigForFunc: func(hostPort string) (*rest.Config, error) {
			if c.Local != nil && hostPort == kubernetesHostPort {
				return local, nil
			}
			config, err := delegate.ClientConfigFor(hostPort)
			return c.configured(config, c.ControlPlane, err)
		},
		ClientConfigForServiceFunc: func(name, namespace string, port int) (*rest.Config, error) {
			if c.Local != nil && name == kubernetesService && namespace == metav1.NamespaceDefault && port == kubernetesPort {
				return local, nil
			}
			config, err := delegate.ClientConfigForService(name, namespace, port)
			return c.configured(config, c.Cluster, err)
		},
	}
}

func (c Clients) configured(config *rest.Config, dial utilnet.DialFunc, err error) (*rest.Config, error) {
	if err != nil {
		return nil, err
	}
	config = rest.CopyConfig(config)
	if dial != nil {
		config.Dial = dial
	}
	config.Wrap(c.limit)
	if c.Trace != nil {
		config.Wrap(c.Trace)
	}
	return config, nil
}

func (c Clients) limit(transport http.RoundTripper) http.RoundTripper {
	return limited{transport, c.MaxResponse}
}

// limited is a transport whose responses fail when they are longer than max, or are redirects.
type limited struct {
	http.RoundTripper
	max int64
}

// RoundTrip implements http.RoundTripper.
func (l limited) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := l.RoundTripper.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if response.StatusCode/100 == 3 && response.Header.Get("Location") != "" {
		response.Body.Close()
		return nil, errRedirect
	}
	response.Body = &limitedBody{ReadCloser: response.Body, left: l.max, err: fmt.Errorf("%w of %d bytes", errTooLarge, l.max)}
	return response, nil
}

// WrappedRoundTripper lets client-go find the transport.
func (l limited) WrappedRoundTripper() http.RoundTripper { return l.RoundTripper }

var errTooLarge = errors.New("the response exceeds the limit")

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
