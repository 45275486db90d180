package handlers

import (
	"context"
	"time"

	"golang.org/x/net/websocket"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"quorate.dev/apiserver/codec"
)

// serveWebSocket calls run with a stream over a WebSocket, which takes over the connection. The stream ends when the
// client closes it; whatever the client sends is ignored.
func (s *stream) serveWebSocket(ctx context.Context, run func(context.Context)) {
	websocket.Handler(func(socket *websocket.Conn) {
		defer socket.Close()
		s.socket = socket
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		go func() {
			defer cancel()
			wsstream.IgnoreReceivesWithLogger(s.record.Logger, socket, 0)
		}()
		run(ctx)
	}).ServeHTTP(s.w, s.r)
}

// lengthPrefix is the size of the length before each frame of a protobuf stream, in bytes. WebSocket messages omit it.
const lengthPrefix = 4

// sendMessage sends a frame as one message: binary for protobuf, else text.
func (s *stream) sendMessage(frame []byte) bool {
	if err := s.socket.SetWriteDeadline(time.Now().Add(s.writeTimeout)); err != nil {
		return false
	}
	if s.format.Media == codec.Protobuf {
		return websocket.Message.Send(s.socket, frame[lengthPrefix:]) == nil
	}
	return websocket.Message.Send(s.socket, string(frame)) == nil
}
