package wire

import (
	"errors"
	"fmt"

	"golang.org/x/net/http2"
)

// handle processes a frame. An error ends the connection.
func (c *Connection) handle(frame http2.Frame) error {
	switch frame := frame.(type) {
	case *http2.DataFrame:
		return c.handleData(frame)
	case *http2.MetaHeadersFrame:
		return c.handleHeaders(frame)
	case *http2.RSTStreamFrame:
		c.finish(frame.StreamID, fmt.Errorf("the server reset the stream: %v", frame.ErrCode))
	case *http2.GoAwayFrame:
		return fmt.Errorf("the server sent GOAWAY: %v", frame.ErrCode)
	case *http2.WindowUpdateFrame:
		c.handleWindow(frame)
	case *http2.SettingsFrame:
		if !frame.IsAck() {
			return c.write(c.framer.WriteSettingsAck)
		}
	case *http2.PingFrame:
		if !frame.IsAck() {
			return c.write(func() error { return c.framer.WritePing(true, frame.Data) })
		}
	}
	return nil
}

// write writes one frame.
func (c *Connection) write(frame func() error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return errors.Join(frame(), c.flush())
}

func (c *Connection) handleWindow(frame *http2.WindowUpdateFrame) {
	if frame.StreamID != 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.window += int(frame.Increment)
	c.credit.Broadcast()
}

func (c *Connection) handleHeaders(frame *http2.MetaHeadersFrame) error {
	s := c.stream(frame.StreamID)
	if s == nil {
		return nil
	}
	status, retryAfter := 0, ""
	for _, field := range frame.Fields {
		switch field.Name {
		case ":status":
			if _, err := fmt.Sscan(field.Value, &status); err != nil {
				return fmt.Errorf("parse status %q: %w", field.Value, err)
			}
		case "retry-after":
			retryAfter = field.Value
		}
	}
	if status > 0 { // otherwise the fields are trailers
		s.handler.Start(status, retryAfter)
	}
	if frame.StreamEnded() {
		c.finish(frame.StreamID, nil)
	}
	return nil
}

func (c *Connection) handleData(frame *http2.DataFrame) error {
	size := int(frame.Length)
	c.read += size
	s := c.stream(frame.StreamID)
	if s != nil {
		s.read += size
		s.handler.Data(frame.Data())
	}
	if err := c.giveBack(frame.StreamID, s, frame.StreamEnded()); err != nil {
		return err
	}
	if s != nil && frame.StreamEnded() {
		c.finish(frame.StreamID, nil)
	}
	return nil
}

// giveBack enlarges the windows that are half used.
func (c *Connection) giveBack(id uint32, s *stream, ended bool) error {
	if c.read >= connectionWindow/2 {
		size := uint32(c.read)
		c.read = 0
		if err := c.write(func() error { return c.framer.WriteWindowUpdate(0, size) }); err != nil {
			return err
		}
	}
	if s == nil || ended || s.read < streamWindow/2 {
		return nil
	}
	size := uint32(s.read)
	s.read = 0
	return c.write(func() error { return c.framer.WriteWindowUpdate(id, size) })
}

// stream returns a stream, or nil if it has ended.
func (c *Connection) stream(id uint32) *stream {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.streams[id]
}

// finish ends a request.
func (c *Connection) finish(id uint32, err error) {
	c.mu.Lock()
	s := c.streams[id]
	delete(c.streams, id)
	c.mu.Unlock()
	if s != nil {
		s.handler.End(err)
	}
}
