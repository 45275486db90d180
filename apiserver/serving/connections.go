package serving

import (
	"net"
	"sync"
)

// connections is a listener that tracks its open connections. net/http does not track hijacked ones, such as exec
// streams; end closes them too, so that their clients notice at once.
type connections struct {
	net.Listener
	mu   sync.Mutex
	open map[*connection]struct{} // nil after end
}

func newConnections(listener net.Listener) *connections {
	return &connections{Listener: listener, open: map[*connection]struct{}{}}
}

// Accept implements net.Listener.
func (c *connections) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	setUserTimeout(conn)
	accepted := &connection{Conn: conn, all: c}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open == nil {
		_ = conn.Close()
		return nil, net.ErrClosed
	}
	c.open[accepted] = struct{}{}
	return accepted, nil
}

// end closes all connections, and those accepted later.
func (c *connections) end() {
	c.mu.Lock()
	open := c.open
	c.open = nil
	c.mu.Unlock()
	for accepted := range open {
		_ = accepted.Conn.Close() // fails if the peer has closed it already
	}
}

// connection removes itself from all.open when it is closed.
type connection struct {
	net.Conn
	all *connections
}

// Close implements net.Conn.
func (c *connection) Close() error {
	c.all.mu.Lock()
	delete(c.all.open, c)
	c.all.mu.Unlock()
	return c.Conn.Close()
}
