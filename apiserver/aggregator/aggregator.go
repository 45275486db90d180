package aggregator

import (
	"context"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"
)

// Options configure an Aggregator.
type Options struct {
	Resolver webhook.ServiceResolver
	// Certificate is the front-proxy client certificate; nil for none.
	Certificate *Certificate
	// Dial connects to extension API servers; nil means a net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// RejectRedirects responds with 502 instead of a redirect (--aggregator-reject-forwarding-redirect).
	RejectRedirects bool
	// MaxRequestsInFlight bounds the requests to each server that are not long-running; 0: no limit.
	MaxRequestsInFlight int
	// Unknown serves the resources of groups if their APIServices are not known after knownTimeout.
	Unknown http.Handler
	// Inspect wraps the round tripper to each server; nil: not wrapped.
	Inspect func(http.RoundTripper) http.RoundTripper
	// Rejected is called for each request that a Backend responds to itself.
	Rejected func(r *http.Request, code int)
}

// Aggregator holds the current Table.
type Aggregator struct {
	options Options
	pools   *pools
	current atomic.Pointer[Table] // nil before Known
	// published is closed when current is set.
	published chan struct{}

	mu       sync.Mutex // guards the fields below and the replacement of the table
	backends map[string]*Backend
	known    bool
}

// New returns an aggregator without backends.
func New(options Options) *Aggregator {
	a := &Aggregator{options: options, pools: newPools(options), backends: map[string]*Backend{}, published: make(chan struct{})}
	if options.Certificate != nil {
		options.Certificate.changed = a.pools.reopen
	}
	return a
}

// HasCertificate reports whether this server has a front-proxy client certificate.
func (a *Aggregator) HasCertificate() bool { return a.options.Certificate != nil }

// Table returns the current table. It is empty before Known.
func (a *Aggregator) Table() *Table {
	if t := a.current.Load(); t != nil {
		return t
	}
	return &Table{}
}

// Set stores the state of an APIService and returns its backend, nil if this server serves it. Any other object marks
// the APIService as deleted. The current table has the state when Set returns, except before Known.
func (a *Aggregator) Set(name string, object runtime.Object) *Backend {
	a.mu.Lock()
	defer a.mu.Unlock()
	before := a.backends[name]
	var after *Backend
	if service, ok := object.(*apiregistration.APIService); ok && service.Spec.Service != nil {
		after = a.backend(service)
	}
	if before != nil { // after a.backend, which keeps connections that are still used
		a.pools.release(before.connections)
	}
	switch {
	case after != nil:
		a.backends[name] = after
	case before != nil:
		delete(a.backends, name)
	default:
		return nil
	}
	if a.known {
		a.current.Store(newTable(a.backends))
	}
	return after
}

// knownTimeout bounds how long a request at the start waits until all APIServices are known. It takes milliseconds if
// etcd is available.
const knownTimeout = time.Second

// Route returns the handler of a path that this server does not serve itself, else nil. While the APIServices are not
// known, it waits for them if the path is that of a resource in a group. Discovery documents do not wait.
func (a *Aggregator) Route(ctx context.Context, path string) http.Handler {
	t := a.current.Load()
	if t == nil {
		const beforeResource = 4 // slashes, in /apis/GROUP/VERSION/RESOURCE
		if !strings.HasPrefix(path, "/apis/") || strings.Count(path, "/") < beforeResource {
			return nil
		}
		ctx, cancel := context.WithTimeout(ctx, knownTimeout)
		defer cancel()
		select {
		case <-a.published:
			t = a.current.Load()
		case <-ctx.Done():
			return a.options.Unknown
		}
	}
	if backend := t.Route(path); backend != nil {
		return backend
	}
	return nil
}

// Known publishes the backends of all APIServices that existed at the start. It must be called once.
func (a *Aggregator) Known() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.known = true
	a.current.Store(newTable(a.backends))
	close(a.published)
}
