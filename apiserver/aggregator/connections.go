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

// These are the settings of client-go's transports.
const (
	dialTimeout      = 30 * time.Second
	handshakeTimeout = 10 * time.Second
	maxIdle          = 25 // maximum number of idle connections to one address
)

// poolKey identifies connections: Backends with equal keys share them.
type poolKey struct {
	service  Service
	insecure bool
	// bundle has the certificate authorities (caBundle) that the serving certificate is verified with.
	bundle string
}

// connections has the connections to one server with one way of verifying its serving certificate.
type connections struct {
	key      poolKey
	inFlight slots
	uses     int                  // number of Backends that have acquired the connections; guarded by pools.mu
	pool     atomic.Pointer[pool] // never nil; replaced when the client certificate changes
}

// pool is a transport with its open connections, or the reason why there is none.
type pool struct {
	transport *http.Transport
	inspected http.RoundTripper // transport, wrapped by Options.Inspect
	err       error
}

// close closes the idle connections. Connections in use stay open until their last request has ended.
func (p *pool) close() {
	if p.transport != nil {
		p.transport.CloseIdleConnections()
	}
}

// pools has the connections to all servers by key.
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

// acquire returns the connections with a key, and creates them if necessary. The caller must release them.
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

// release undoes one acquire. After the last one, it closes the idle connections; a connection in use becomes idle
// when its requests end, and is closed after the idle timeout at the latest.
func (p *pools) release(c *connections) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.uses--; c.uses == 0 {
		delete(p.byKey, c.key)
		c.pool.Load().close()
	}
}

// reopen replaces all transports, so that new requests use new connections with the present client certificate.
func (p *pools) reopen() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, c := range p.byKey {
		c.pool.Swap(p.open(key)).close()
	}
}

// open returns a new transport. It mirrors kube-aggregator's BuildTransportConfig and client-go's transport.New.
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

// newPool returns a pool with the wrapped transport. Requests of clients use the wrapped transport, which counts
// deprecated certificates; probes and upgrades use the transport itself.
func newPool(direct *http.Transport, inspect func(http.RoundTripper) http.RoundTripper) *pool {
	if inspect == nil {
		return &pool{transport: direct, inspected: direct}
	}
	return &pool{transport: direct, inspected: inspect(direct)}
}

// slots limits the number of requests in flight. It is shared by all APIServices of one server, because a server that
// does not respond would otherwise hold all requests that flow control admits.
type slots struct {
	max   int64 // 0: no limit
	taken atomic.Int64
}

// take occupies a slot and reports whether the limit permitted it. If so, the caller must free the slot.
func (s *slots) take() bool {
	if n := s.taken.Add(1); s.max == 0 || n <= s.max {
		return true
	}
	s.free()
	return false
}

func (s *slots) free() { s.taken.Add(-1) }
