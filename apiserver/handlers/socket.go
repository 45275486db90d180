package handlers

import (
	"context"
	"time"

	"golang.org/x/net/websocket"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"quorate.dev/apiserver/codec"
)

// overSocket streams over a WebSocket, whose connection leaves HTTP for it. The stream ends when the client closes it,
// who is expected to send nothing.
func (s *stream) overSocket(ctx context.Context, run func(context.Context)) {
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

// lengthPrefix is what parts the events of a stream of protobuf, in bytes. A message needs no such thing.
const lengthPrefix = 4

// sendMessage sends a frame as one message: text or binary.
func (s *stream) sendMessage(frame []byte) bool {
	if err := s.socket.SetWriteDeadline(time.Now().Add(s.writeTimeout)); err != nil {
		return false
	}
	if s.encoder.media == codec.Protobuf {
		return websocket.Message.Send(s.socket, frame[lengthPrefix:]) == nil
	}
	return websocket.Message.Send(s.socket, string(frame)) == nil
}
