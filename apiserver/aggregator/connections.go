package aggregator

import (
	"crypto/tls"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/util/webhook"
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

// connections are those to one server with one way of verifying it. APIServices with equal keys share them.
type connections struct {
	resolver webhook.ServiceResolver
	inFlight slots
	uses     int                  // APIServices; guarded by pools.mu
	pool     atomic.Pointer[pool] // replaced when the client certificate changes
}

// pool is a transport, or the reason why there is none.
type pool struct {
	transport *http.Transport
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

// acquire returns the connections of a key. The caller must release the key.
func (p *pools) acquire(key poolKey) *connections {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.byKey[key]
	if c == nil {
		c = &connections{resolver: p.options.Resolver}
		c.inFlight.max = int64(p.options.MaxRequestsInFlight)
		c.pool.Store(p.open(key))
		p.byKey[key] = c
	}
	c.uses++
	return c
}

// release closes the idle connections of a key that no APIService uses any more. Connections in use are closed some time
// after they become idle.
func (p *pools) release(key poolKey) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.byKey[key]
	if c.uses--; c.uses == 0 {
		delete(p.byKey, key)
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
	settings, err := transport.TLSConfigFor(&transport.Config{TLS: transport.TLSConfig{
		Insecure: key.insecure, ServerName: key.service.Name + "." + key.service.Namespace + ".svc", CAData: []byte(key.bundle),
	}})
	if err != nil {
		return &pool{err: err}
	}
	if p.options.Certificate != nil {
		settings.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return p.options.Certificate.current(), nil
		}
	}
	dial := p.options.Dial
	if dial == nil {
		dial = (&net.Dialer{Timeout: dialTimeout, KeepAlive: dialTimeout}).DialContext
	}
	return &pool{transport: utilnet.SetTransportDefaults(&http.Transport{
		Proxy: http.ProxyFromEnvironment, TLSHandshakeTimeout: handshakeTimeout, TLSClientConfig: settings,
		MaxIdleConnsPerHost: maxIdle, DialContext: dial,
	})}
}

// slots counts requests.
type slots struct {
	max   int64 // 0: no limit
	taken atomic.Int64
}

func (s *slots) take() bool {
	if n := s.taken.Add(1); s.max == 0 || n <= s.max {
		return true
	}
	s.taken.Add(-1)
	return false
}

func (s *slots) free() { s.taken.Add(-1) }
