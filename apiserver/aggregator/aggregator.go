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
	// Certificate is the front-proxy client certificate; nil: none.
	Certificate *Certificate
	// Dial connects to extension API servers; nil: a net.Dialer with client-go's timeouts.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// RejectRedirects makes Backends respond with 502 instead of forwarding a redirect
	// (--aggregator-reject-forwarding-redirect).
	RejectRedirects bool
	// MaxRequestsInFlight bounds the number of requests to each server that are not long-running; 0: no limit.
	MaxRequestsInFlight int
	// Unknown serves requests for resources in groups if the APIServices are not known within knownTimeout.
	Unknown http.Handler
	// Inspect wraps the round tripper to each server, for metrics; nil: it is not wrapped.
	Inspect func(http.RoundTripper) http.RoundTripper
	// Rejected is called for each request that a Backend responds to instead of its server; nil: it is not called.
	Rejected func(r *http.Request, code int)
}

// Aggregator holds the current Table. All methods are safe for concurrent use; changes are few and each costs O(number
// of APIServices), so that requests need no lock.
type Aggregator struct {
	options Options
	pools   *pools
	current atomic.Pointer[Table] // nil before Known
	// published is closed when current is set.
	published chan struct{}

	// mu guards the fields below, and serializes replacements of current.
	mu       sync.Mutex
	backends map[string]*Backend // by name of the APIService; only APIServices of extension API servers
	known    bool                // Known was called
}

// New returns an aggregator without backends.
func New(options Options) *Aggregator {
	a := &Aggregator{
		options: options, pools: newPools(options), backends: map[string]*Backend{}, published: make(chan struct{}),
	}
	if options.Certificate != nil {
		options.Certificate.changed = a.pools.reopen
	}
	return a
}

// HasCertificate reports whether this server has a front-proxy client certificate.
func (a *Aggregator) HasCertificate() bool { return a.options.Certificate != nil }

// Table returns the current table, an empty one before Known.
func (a *Aggregator) Table() *Table {
	if t := a.current.Load(); t != nil {
		return t
	}
	return &Table{}
}

// Set stores the state of an APIService and returns its Backend, nil if this server serves the group version. An
// object of any other type marks the APIService as deleted. When Set returns, the current table has the state, except
// before Known.
func (a *Aggregator) Set(name string, object runtime.Object) *Backend {
	a.mu.Lock()
	defer a.mu.Unlock()
	before := a.backends[name]
	var after *Backend
	if service, ok := object.(*apiregistration.APIService); ok && service.Spec.Service != nil {
		after = a.backend(service)
	}
	// The former Backend releases its connections only now, because the new Backend may have acquired the same
	// connections: these stay open.
	if before != nil {
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

// knownTimeout bounds the time for which a request waits until all APIServices are known after the start. That takes
// milliseconds if etcd is available.
const knownTimeout = time.Second

// Route returns the Backend of a path, or nil if this server serves the path. Before Known, a path of a resource in a
// group waits up to knownTimeout, and is then served by Options.Unknown. Other paths, such as discovery documents, do
// not wait.
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

// Known publishes the Backends of all APIServices that existed at the start. It must be called once, when Set has
// been called for all of them.
func (a *Aggregator) Known() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.known = true
	a.current.Store(newTable(a.backends))
	close(a.published)
}
