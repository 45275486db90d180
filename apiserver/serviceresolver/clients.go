package serviceresolver

import (
	"context"
	"net/http"
	"net/url"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"

	"quorate.dev/apiserver/transport"
)

// These are the names of this server's Service in webhook configurations.
const (
	kubernetesService  = "kubernetes"
	kubernetesPort     = 443
	kubernetesHostPort = "kubernetes.default.svc:443"
)

// Clients configures the clients of webhooks.
type Clients struct {
	// Local sends requests to this server without a connection, as a privileged user. If it is nil, the Service of this
	// server is called like any other Service.
	Local http.RoundTripper
	// ControlPlane connects to webhooks with URLs, Cluster to webhooks behind Services; nil connects directly.
	ControlPlane, Cluster utilnet.DialFunc
	// Trace wraps transports to trace their requests; nil disables tracing.
	Trace func(http.RoundTripper) http.RoundTripper
	// MaxResponse is the limit of the bytes of a response. A review may contain a Secret, so that redirects are errors.
	MaxResponse int64
}

// Resolver returns the resolver of webhooks' Services. With the feature gate WebhookRoundTripLoadBalancing, clients
// resolve the Service before each request; the Service of this server needs no endpoint if requests go through Local.
func (c Clients) Resolver(delegate webhook.ServiceResolver) webhook.ServiceResolver {
	if c.Local == nil {
		return delegate
	}
	return localResolver{delegate}
}

type localResolver struct{ webhook.ServiceResolver }

// ResolveEndpoint implements webhook.ServiceResolver.
func (r localResolver) ResolveEndpoint(namespace, name string, port int32) (*url.URL, error) {
	if namespace == metav1.NamespaceDefault && name == kubernetesService && port == kubernetesPort {
		return &url.URL{Scheme: "https", Host: kubernetesHostPort}, nil
	}
	return r.ServiceResolver.ResolveEndpoint(namespace, name, port)
}

// Wrap implements webhook.AuthenticationInfoResolverWrapper. A webhook whose Service is default/kubernetes is called
// through Local, regardless of the kubeconfig for webhooks. kube-apiserver uses its loopback client in this case, so
// that aggregated API servers can serve webhooks.
func (c Clients) Wrap(delegate webhook.AuthenticationInfoResolver) webhook.AuthenticationInfoResolver {
	// client-go rejects a Transport together with a caBundle; a wrapped transport ignores the caBundle.
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

func (c Clients) limit(next http.RoundTripper) http.RoundTripper {
	return punctual{transport.Limit(next, c.MaxResponse)}
}

// punctual is a transport that sends no request after the deadline of its context, and delays errors after the deadline
// until the context has ended. A connection may time out a moment before the context ends: without the delay,
// upstream's dispatcher would regard the error as a failure of the webhook, and call the next webhook.
type punctual struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (p punctual) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := awaitEnd(r.Context()); err != nil {
		return nil, err
	}
	response, err := p.RoundTripper.RoundTrip(r)
	if err != nil {
		_ = awaitEnd(r.Context())
	}
	return response, err
}

// WrappedRoundTripper returns the wrapped transport, as client-go's net.RoundTripperWrapper requires.
func (p punctual) WrappedRoundTripper() http.RoundTripper { return p.RoundTripper }

// awaitEnd returns the error of a context. If the deadline of the context has passed, it first waits until the context
// has ended.
func awaitEnd(ctx context.Context) error {
	if at, ok := ctx.Deadline(); ok && !time.Now().Before(at) {
		<-ctx.Done()
	}
	return ctx.Err()
}
