// Package wire sends requests over HTTP/2 with as little memory and processor time as possible, because thousands of
// its connections share a machine with the server that they measure.
//
// A connection has one goroutine, which reads frames and calls the handlers of responses. It sends what client-go's
// transport sends: the same preface and windows, and acknowledgements of settings and pings. Bodies of requests must be
// smaller than the smallest initial window of a stream, since the connection does not track the windows of streams.
package wire

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// Sizes of windows as in golang.org/x/net/http2, which client-go uses.
const (
	streamWindow     = 4 << 20
	connectionWindow = 1 << 30
	firstWindow      = 65535 // initial window of a connection in both directions
	largestBody      = 60 << 10
	frameSize        = 16 << 10
)

// errClosed is the reason for which requests of a closed connection end.
var errClosed = errors.New("the connection was closed by the client")

// Connection is an HTTP/2 connection to a server.
type Connection struct {
	socket *tls.Conn
	host   string
	framer *http2.Framer
	read   int // bytes of DATA that the connection's window has not been given back; used by the reading goroutine

	mu      sync.Mutex
	credit  *sync.Cond // signalled when window grows or the connection ends
	out     bytes.Buffer
	encoder *hpack.Encoder
	block   bytes.Buffer // the encoded header block of the encoder
	window  int          // bytes of DATA that may be sent
	next    uint32       // identifier of the next stream
	streams map[uint32]*stream
	err     error // reason for which the connection has ended; nil: it is open
}

// stream is a request whose response has not ended.
type stream struct {
	handler Handler
	read    int // bytes of DATA that the stream's window has not been given back; used by the reading goroutine
}

// Handler receives one response. The goroutine of the connection calls it, so that it must not wait for other
// responses.
type Handler interface {
	// Start is called with the status of the response and the value of its header retry-after.
	Start(status int, retryAfter string)
	// Data is called with a part of the body, which is valid until Data returns.
	Data(part []byte)
	// End is called once, as the last method. The error is nil if the server has ended the response regularly.
	End(err error)
}

// Dial connects to an address. The configuration must name the server.
func Dial(ctx context.Context, address string, configuration *tls.Config) (*Connection, error) {
	raw, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	socket := tls.Client(raw, configuration)
	if err := socket.HandshakeContext(ctx); err != nil {
		raw.Close()
		return nil, fmt.Errorf("TLS handshake with %s: %w", address, err)
	}
	c := &Connection{socket: socket, host: address, window: firstWindow, next: 1, streams: map[uint32]*stream{}}
	c.credit = sync.NewCond(&c.mu)
	c.encoder = hpack.NewEncoder(&c.block)
	c.framer = http2.NewFramer(&c.out, socket)
	c.framer.SetReuseFrames()
	c.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	if err := c.greet(); err != nil {
		raw.Close()
		return nil, fmt.Errorf("greet %s: %w", address, err)
	}
	return c, nil
}

// greet sends the preface of a client.
func (c *Connection) greet() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.out.WriteString(http2.ClientPreface)
	err := c.framer.WriteSettings(
		http2.Setting{ID: http2.SettingEnablePush, Val: 0},
		http2.Setting{ID: http2.SettingInitialWindowSize, Val: streamWindow},
	)
	if err != nil {
		return err
	}
	if err := c.framer.WriteWindowUpdate(0, connectionWindow-firstWindow); err != nil {
		return err
	}
	return c.flush()
}

// flush sends the frames that the framer has encoded into c.out, and empties c.out. The caller holds c.mu.
func (c *Connection) flush() error {
	_, err := c.socket.Write(c.out.Bytes())
	c.out.Reset()
	if c.out.Cap() > frameSize {
		c.out = bytes.Buffer{}
	}
	return err
}

// Err returns the reason for which the connection has ended, or nil.
func (c *Connection) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Serve reads frames until the connection ends, and returns the reason. It must be called once.
func (c *Connection) Serve() error {
	for {
		frame, err := c.framer.ReadFrame()
		if err == nil {
			err = c.handle(frame)
		}
		if err != nil {
			c.end(err)
			return err
		}
	}
}

// end closes the socket and ends all requests.
func (c *Connection) end(err error) {
	c.mu.Lock()
	if c.err == nil {
		c.err = err
	}
	err = c.err
	streams := c.streams
	c.streams = map[uint32]*stream{}
	c.credit.Broadcast()
	c.mu.Unlock()
	c.socket.NetConn().Close()
	for _, s := range streams {
		s.handler.End(err)
	}
}

// Close drops the connection as a failing network does, without a GOAWAY frame. Serve ends all requests afterwards.
func (c *Connection) Close() {
	c.mu.Lock()
	if c.err == nil {
		c.err = errClosed
	}
	c.credit.Broadcast()
	c.mu.Unlock()
	c.socket.NetConn().Close()
}
