package handlers

import (
	"context"
	"time"

	"golang.org/x/net/websocket"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"quorate.dev/apiserver/codec"
)

// serveWebSocket upgrades the connection to a WebSocket and calls run. The stream ends when the client closes the
// WebSocket; messages of the client are ignored.
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

// lengthPrefix is the size in bytes of the length that precedes each frame of a protobuf stream. WebSocket messages
// omit the length.
const lengthPrefix = 4

// sendMessage sends a frame as one message: a binary message for protobuf and CBOR, otherwise a text message.
func (s *stream) sendMessage(frame []byte) bool {
	if err := s.socket.SetWriteDeadline(time.Now().Add(s.writeTimeout)); err != nil {
		return false
	}
	switch s.format.Media {
	case codec.Protobuf:
		return websocket.Message.Send(s.socket, frame[lengthPrefix:]) == nil
	case codec.CBOR:
		return websocket.Message.Send(s.socket, frame) == nil
	}
	return websocket.Message.Send(s.socket, string(frame)) == nil
}
