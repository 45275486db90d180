package request

import (
	"context"
	"sync/atomic"
)

// Connection is the connection of a request. It is safe for concurrent use.
type Connection struct {
	// Authenticated is set once a request on the connection has been authenticated as a user that is not anonymous.
	Authenticated atomic.Bool
}

type connectionKey struct{}

// WithConnection returns a context for the requests of a connection.
func WithConnection(ctx context.Context, connection *Connection) context.Context {
	return context.WithValue(ctx, connectionKey{}, connection)
}

// MarkAuthenticated notes that a request was authenticated, if the server tracks its connection.
func MarkAuthenticated(ctx context.Context) {
	connection, ok := ctx.Value(connectionKey{}).(*Connection)
	if ok && !connection.Authenticated.Load() {
		connection.Authenticated.Store(true)
	}
}
