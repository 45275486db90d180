package wire

import (
	"context"
	"fmt"
	"net"
	"strconv"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// Media types.
const (
	Protobuf            = "application/vnd.kubernetes.protobuf"
	ProtobufStream      = Protobuf + ";stream=watch"
	StrategicMergePatch = "application/strategic-merge-patch+json"
)

// Request is a request with a complete body.
type Request struct {
	Method, Path, Accept string
	ContentType          string // media type of the body; "": the request has no body
	Body                 []byte
}

// Start sends a request, whose response the handler receives. If it returns an error, no method of the handler has been
// or will be called. The returned function resets the stream, which ends the request.
func (c *Connection) Start(r Request, handler Handler) (reset func(), err error) {
	if len(r.Body) > largestBody {
		return nil, fmt.Errorf("%s %s: a body of %d bytes is too large for this client", r.Method, r.Path, len(r.Body))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.err == nil && c.window < len(r.Body) {
		c.credit.Wait()
	}
	if c.err != nil {
		return nil, c.err
	}
	id := c.next
	c.next += 2
	c.window -= len(r.Body)
	c.streams[id] = &stream{handler: handler}
	if err := c.send(id, r); err != nil {
		delete(c.streams, id)
		return nil, err
	}
	return func() { c.reset(id) }, nil
}

// StartUnread sends a request whose response is never read, although the client has granted a large window. buffer is
// the size of the socket's buffer. Serve must not be called.
func (c *Connection) StartUnread(r Request, buffer int) error {
	if socket, ok := c.socket.NetConn().(*net.TCPConn); ok {
		if err := socket.SetReadBuffer(buffer); err != nil {
			return err
		}
	}
	_, err := c.Start(r, &reception{ended: make(chan error, 1)})
	return err
}

// send writes the frames of a request. The caller holds c.mu.
func (c *Connection) send(id uint32, r Request) error {
	c.block.Reset()
	c.field(":authority", c.host)
	c.field(":method", r.Method)
	c.field(":path", r.Path)
	c.field(":scheme", "https")
	c.field("accept", r.Accept)
	if r.ContentType != "" {
		c.field("content-type", r.ContentType)
		c.field("content-length", strconv.Itoa(len(r.Body)))
	}
	c.field("user-agent", "hollow-node")
	err := c.framer.WriteHeaders(http2.HeadersFrameParam{
		StreamID: id, BlockFragment: c.block.Bytes(), EndHeaders: true, EndStream: len(r.Body) == 0,
	})
	for body := r.Body; err == nil && len(body) > 0; {
		part := body[:min(len(body), frameSize)]
		body = body[len(part):]
		err = c.framer.WriteData(id, len(body) == 0, part)
	}
	if err != nil {
		return err
	}
	return c.flush()
}

func (c *Connection) field(name, value string) {
	// Paths differ from request to request, and would only displace other fields from the table.
	sensitive := name == ":path" || name == "content-length"
	_ = c.encoder.WriteField(hpack.HeaderField{Name: name, Value: value, Sensitive: sensitive}) // writes to memory
}

// reset ends a request that is still running.
func (c *Connection) reset(id uint32) {
	c.mu.Lock()
	_, running := c.streams[id]
	if running && c.err == nil {
		_ = c.framer.WriteRSTStream(id, http2.ErrCodeCancel) // writes to memory
		_ = c.flush()                                        // Serve returns the error of the connection
	}
	c.mu.Unlock()
	if running {
		c.finish(id, context.Canceled)
	}
}

// Response is a complete response.
type Response struct {
	Status     int
	RetryAfter string
	Body       []byte // at most the number of bytes that Do was called with
	Size       int64  // bytes of the whole body
}

// Do sends a request, and returns its response with at most keep bytes of the body. Responses of every status are
// responses; an error means that none was received.
func (c *Connection) Do(ctx context.Context, r Request, keep int) (Response, error) {
	reception := &reception{keep: keep, ended: make(chan error, 1)}
	reset, err := c.Start(r, reception)
	if err != nil {
		return Response{}, fmt.Errorf("%s %s: %w", r.Method, r.Path, err)
	}
	select {
	case err = <-reception.ended:
	case <-ctx.Done():
		reset()
		if err = <-reception.ended; err != nil {
			err = ctx.Err()
		}
	}
	if err != nil {
		return Response{}, fmt.Errorf("%s %s: %w", r.Method, r.Path, err)
	}
	return reception.response, nil
}

// reception collects a response.
type reception struct {
	response Response
	keep     int
	ended    chan error
}

// Start stores the status.
func (r *reception) Start(status int, retryAfter string) {
	r.response.Status, r.response.RetryAfter = status, retryAfter
}

// Data stores the beginning of the body.
func (r *reception) Data(part []byte) {
	r.response.Size += int64(len(part))
	r.response.Body = append(r.response.Body, part[:min(len(part), r.keep-len(r.response.Body))]...)
}

// End wakes Do.
func (r *reception) End(err error) { r.ended <- err }
