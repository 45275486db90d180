package authentication

import (
	"context"
	"net"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
)

// connection caches the results of authentication for a connection.
type connection struct {
	// local is the fixed result for the server's requests to itself; nil for all other connections.
	local  *authenticator.Response
	client atomic.Pointer[decision]
	proxy  atomic.Pointer[decision]
}

// decision is the result of verifying a connection's certificate. If it has neither a response nor an error, the
// certificate is valid but authenticates no user, because it is a front proxy's or has no common name.
type decision struct {
	// bundle has the authorities against which the certificate was verified.
	bundle *bundle
	// proxy is the configuration whose AllowedNames were checked; nil for a client's certificate.
	proxy    *FrontProxy
	until    time.Time
	response *authenticator.Response
	err      error
}

// holds reports whether the decision can still be used.
func (v *decision) holds(current *bundle, now time.Time) bool {
	return v != nil && v.bundle == current && now.Before(v.until)
}

type connectionKey struct{}

// ConnContext is for http.Server.ConnContext. It creates the cache of a connection.
func ConnContext(ctx context.Context, _ net.Conn) context.Context {
	return context.WithValue(ctx, connectionKey{}, &connection{})
}

// connectionOf returns the cache of the request's connection, or an empty cache if the server does not use ConnContext.
func connectionOf(ctx context.Context) *connection {
	if c, ok := ctx.Value(connectionKey{}).(*connection); ok {
		return c
	}
	return &connection{}
}
