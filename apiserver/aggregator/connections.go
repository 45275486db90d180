package aggregator

import (
	"crypto/tls"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/transport"
)

// client-go's settings of its transports.
const (
	dialTimeout      = 30 * time.Second
	handshakeTimeout = 10 * time.Second
	maxIdle          = 25 // connections to one address
)

// poolKey identifies the APIServices that share connections.
type poolKey struct {
	service  Service
	insecure bool
	bundle   string
}

// connections are those to one server with one way of verifying its certificate.
type connections struct {
	key      poolKey
	inFlight slots
	uses     int                  // backends; guarded by pools.mu
	pool     atomic.Pointer[pool] // replaced when the client certificate changes
}

// pool is a transport, or the reason why there is none.
type pool struct {
	transport *http.Transport
	inspected http.RoundTripper // transport or its wrapper
	err       error
}

func (p *pool) close() {
	if p.transport != nil {
		p.transport.CloseIdleConnections()
	}
}

// pools has the connections to all servers.
type pools struct {
	options Options
	mu      sync.Mutex
	byKey   map[poolKey]*connections
}

func newPools(options Options) *pools {
	if options.Dial == nil {
		options.Dial = (&net.Dialer{Timeout: dialTimeout, KeepAlive: dialTimeout}).DialContext
	}
	return &pools{options: options, byKey: map[poolKey]*connections{}}
}

// acquire returns the connections of a key. The caller must release them.
func (p *pools) acquire(key poolKey) *connections {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.byKey[key]
	if c == nil {
		c = &connections{key: key, inFlight: slots{max: int64(p.options.MaxRequestsInFlight)}}
		c.pool.Store(p.open(key))
		p.byKey[key] = c
	}
	c.uses++
	return c
}

// release closes idle connections that no backend uses any more. A connection that is in use becomes idle when its
// request ends, and is closed after the idle timeout.
func (p *pools) release(c *connections) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.uses--; c.uses == 0 {
		delete(p.byKey, c.key)
		c.pool.Load().close()
	}
}

// reopen makes new requests use new connections.
func (p *pools) reopen() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, c := range p.byKey {
		c.pool.Swap(p.open(key)).close()
	}
}

// open mirrors kube-aggregator's BuildTransportConfig and client-go's transport.New.
func (p *pools) open(key poolKey) *pool {
	config := &transport.Config{TLS: transport.TLSConfig{
		Insecure: key.insecure, ServerName: key.service.Name + "." + key.service.Namespace + ".svc",
		CAData: []byte(key.bundle),
	}}
	settings, err := transport.TLSConfigFor(config)
	if err != nil {
		return &pool{err: err}
	}
	if certificate := p.options.Certificate; certificate != nil {
		settings.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return certificate.current(), nil
		}
	}
	return newPool(utilnet.SetTransportDefaults(&http.Transport{
		Proxy: http.ProxyFromEnvironment, TLSHandshakeTimeout: handshakeTimeout, TLSClientConfig: settings,
		MaxIdleConnsPerHost: maxIdle, DialContext: p.options.Dial,
	}), p.options.Inspect)
}

func newPool(direct *http.Transport, inspect func(http.RoundTripper) http.RoundTripper) *pool {
	if inspect == nil {
		return &pool{transport: direct, inspected: direct}
	}
	return &pool{transport: direct, inspected: inspect(direct)}
}

// slots counts requests.
type slots struct {
	max   int64 // 0: no limit
	taken atomic.Int64
}

// take reports whether the limit permits another request. If so, the caller must free its slot.
func (s *slots) take() bool {
	if n := s.taken.Add(1); s.max == 0 || n <= s.max {
		return true
	}
	s.free()
	return false
}

func (s *slots) free() { s.taken.Add(-1) }
