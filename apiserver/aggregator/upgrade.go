package aggregator

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"sync"
)

// upgrade limits the time until a server accepts or rejects an upgrade to the deadline of the request. Upstream's
// handler waits for the response regardless of the context; therefore upgrade closes the connection to the server when
// the context ends. After the server has accepted the upgrade, the connection lasts until one side closes it.
type upgrade struct {
	http.ResponseWriter
	// stop detaches the connection from the request's context.
	stop func() bool

	mu    sync.Mutex // guards the fields below
	conn  net.Conn
	ended bool
}

// newUpgrade returns an upgrade, which is the response writer for the handler. The caller must call end.
func newUpgrade(ctx context.Context, w http.ResponseWriter) *upgrade {
	u := &upgrade{ResponseWriter: w}
	u.stop = context.AfterFunc(ctx, u.close)
	return u
}

// transport returns a transport with the settings of base for the single connection of the upgrade.
func (u *upgrade) transport(base *http.Transport) *http.Transport {
	return &http.Transport{
		TLSClientConfig: base.TLSClientConfig.Clone(), Proxy: base.Proxy,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := base.DialContext(ctx, network, address)
			if err != nil {
				return nil, err
			}
			u.mu.Lock()
			defer u.mu.Unlock()
			if u.ended {
				_ = conn.Close()
				return nil, net.ErrClosed
			}
			u.conn = conn
			return conn, nil
		},
	}
}

// close closes the connection to the server. A connection that is still being established is closed when it is
// established.
func (u *upgrade) close() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.ended = true
	if u.conn != nil {
		_ = u.conn.Close()
	}
}

// Hijack implements http.Hijacker. The handler calls it when the server has responded.
func (u *upgrade) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	u.stop()
	return http.NewResponseController(u.ResponseWriter).Hijack()
}

func (u *upgrade) end() { u.stop() }
