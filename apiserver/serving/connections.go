package serving

import (
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"quorate.dev/apiserver/request"
)

// maxExamined is the maximum number of connections that are examined to find one that can be closed.
const maxExamined = 1024

// capacityLogInterval is the minimum time between two log lines about closed connections.
const capacityLogInterval = time.Minute

// connections is a listener that tracks its open connections and keeps their number within a capacity. When the
// capacity is reached, it closes an open connection of low rank or, if there is none, the new connection.
//
// net/http does not track hijacked connections, such as exec streams; end closes them too, so that their clients notice
// the end of the server immediately.
type connections struct {
	net.Listener
	capacity capacity
	logger   logr.Logger
	evicted  prometheus.Counter
	refused  prometheus.Counter

	mu sync.Mutex
	// open is nil after end.
	open map[*connection]struct{}
	// bySource counts the open connections of each source. Invariant: no entry is 0.
	bySource map[netip.Addr]int
	accepted uint64
	logged   time.Time
}

func newConnections(
	listener net.Listener, capacity capacity, logger logr.Logger, registerer prometheus.Registerer,
) *connections {
	closed := promauto.With(registerer).NewCounterVec(prometheus.CounterOpts{
		Name: "quorate_connections_closed_total",
		Help: "[ALPHA] Number of connections closed because too many were open, by reason: refused when they were " +
			"accepted, or evicted for others.",
	}, []string{"reason"})
	promauto.With(registerer).NewGauge(prometheus.GaugeOpts{
		Name: "quorate_connections_limit",
		Help: "[ALPHA] Number of connections that may be open, derived from the limit of file descriptors; 0: no limit.",
	}).Set(float64(capacity.connections))
	return &connections{
		Listener: listener, capacity: capacity, logger: logger, open: map[*connection]struct{}{},
		bySource: map[netip.Addr]int{}, evicted: closed.WithLabelValues("evicted"),
		refused: closed.WithLabelValues("refused"),
	}
}

// Accept implements net.Listener.
func (c *connections) Accept() (net.Conn, error) {
	for {
		conn, err := c.Listener.Accept()
		if err != nil {
			return nil, err
		}
		setUserTimeout(conn)
		accepted := &connection{Conn: conn, all: c, source: sourceOf(conn.RemoteAddr())}
		accepted.idle.Store(true)
		closing, err := c.admit(accepted, descriptorOf(conn))
		if closing != nil {
			// Close fails if the peer has already closed the connection.
			_ = closing.Close()
		}
		if err != nil {
			return nil, err
		}
		if closing != accepted {
			return accepted, nil
		}
	}
}

// admit adds a connection. It returns the connection that must be closed to stay within the capacity, possibly accepted
// itself, or nil.
func (c *connections) admit(accepted *connection, descriptor int) (closing *connection, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open == nil {
		return accepted, net.ErrClosed
	}
	c.accepted++
	accepted.number = c.accepted
	if !c.capacity.allows(len(c.open), c.bySource[accepted.source], descriptor) {
		closing = c.leastUseful(accepted.source)
		if closing == nil {
			closing = accepted
			c.refused.Inc()
		} else {
			c.evicted.Inc()
		}
		c.log(accepted.source)
	}
	c.open[accepted] = struct{}{}
	c.bySource[accepted.source]++
	return closing, nil
}

// leastUseful returns the connection to close for a new connection from source, or nil if no connection may be closed.
func (c *connections) leastUseful(source netip.Addr) (found *connection) {
	fromSource := c.bySource[source]
	full := fromSource >= c.capacity.perSource
	var best candidate
	examined := 0
	// The iteration order is random.
	for one := range c.open {
		if examined++; examined > maxExamined {
			break
		}
		next := candidate{
			rank: rankOf(one.request.Authenticated.Load(), one.idle.Load()), source: one.source,
			fromSource: c.bySource[one.source], number: one.number,
		}
		if next.yields(source, fromSource, full) && (found == nil || next.before(best)) {
			best, found = next, one
		}
	}
	return found
}

// log logs that the capacity has been reached, at most once per capacityLogInterval.
func (c *connections) log(source netip.Addr) {
	if now := time.Now(); now.Sub(c.logged) >= capacityLogInterval {
		c.logged = now
		c.logger.Info("Closing connections because too many are open; raise the limit of file descriptors if they are "+
			"legitimate",
			"open", len(c.open), "limit", c.capacity.connections, "source", source, "fromSource", c.bySource[source])
	}
}

// end closes all connections, including connections that are accepted later.
func (c *connections) end() {
	c.mu.Lock()
	open := c.open
	c.open = nil
	c.mu.Unlock()
	for accepted := range open {
		// Close fails if the peer has already closed the connection.
		_ = accepted.Conn.Close()
	}
}

// changed tracks the state of a connection; it is the http.Server's ConnState.
func (c *connections) changed(conn net.Conn, state http.ConnState) {
	if tracked := trackedOf(conn); tracked != nil {
		tracked.idle.Store(state == http.StateIdle || state == http.StateNew)
	}
}

// trackedOf returns the tracked connection below TLS, or nil if conn is not tracked.
func trackedOf(conn net.Conn) *connection {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	tracked, _ := conn.(*connection)
	return tracked
}

// connection is an open connection that connections tracks until it is closed.
type connection struct {
	net.Conn
	all    *connections
	source netip.Addr
	number uint64
	// idle is set while no request is running on the connection.
	idle    atomic.Bool
	request request.Connection
}

// Close implements net.Conn.
func (c *connection) Close() error {
	c.all.mu.Lock()
	if _, open := c.all.open[c]; open {
		delete(c.all.open, c)
		if c.all.bySource[c.source]--; c.all.bySource[c.source] == 0 {
			delete(c.all.bySource, c.source)
		}
	}
	c.all.mu.Unlock()
	return c.Conn.Close()
}

// sourceOf returns the source of a connection: an IPv4 address, or the /64 network of an IPv6 address, which one client
// usually controls.
func sourceOf(address net.Addr) netip.Addr {
	const clientNetwork = 64
	parsed, err := netip.ParseAddrPort(address.String())
	if err != nil {
		return netip.Addr{}
	}
	source := parsed.Addr().Unmap()
	if source.Is6() {
		if network, err := source.WithZone("").Prefix(clientNetwork); err == nil {
			return network.Addr()
		}
	}
	return source
}

// descriptorOf returns the file descriptor of a connection, or -1 if it has none.
func descriptorOf(conn net.Conn) (descriptor int) {
	descriptor = -1
	socket, ok := conn.(syscall.Conn)
	if !ok {
		return descriptor
	}
	if raw, err := socket.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { descriptor = int(fd) })
	}
	return descriptor
}
