package request

import (
	"context"
	"sync/atomic"
)

// Connection is the state of a client's connection. It is safe for concurrent use.
type Connection struct {
	// Authenticated is set when a request on the connection has been authenticated as a user other than anonymous.
	Authenticated atomic.Bool
}

type connectionKey struct{}

// WithConnection returns a context for the requests of a connection.
func WithConnection(ctx context.Context, connection *Connection) context.Context {
	return context.WithValue(ctx, connectionKey{}, connection)
}

// MarkAuthenticated marks the connection of ctx as authenticated, if the server tracks it.
func MarkAuthenticated(ctx context.Context) {
	connection, ok := ctx.Value(connectionKey{}).(*Connection)
	if ok && !connection.Authenticated.Load() {
		connection.Authenticated.Store(true)
	}
}
