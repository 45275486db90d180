package authentication

import (
	"context"
	"net"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
)

// connection caches results per connection.
type connection struct {
	local  *authenticator.Response // set for requests of the server to itself
	client atomic.Pointer[decision]
	proxy  atomic.Pointer[decision]
}

// decision is the result of verifying a connection's certificate. If it has neither a response nor an error, the
// certificate is valid but authenticates no user: it is a front proxy's or has no common name.
type decision struct {
	bundle   *bundle     // against which it was verified
	proxy    *FrontProxy // whose names it was verified against; nil: a client's
	until    time.Time
	response *authenticator.Response
	err      error
}

// holds reports whether the result is still valid.
func (v *decision) holds(current *bundle, now time.Time) bool {
	return v != nil && v.bundle == current && now.Before(v.until)
}

type connectionKey struct{}

// ConnContext is for http.Server.ConnContext. It lets results be cached for the lifetime of a connection.
func ConnContext(ctx context.Context, _ net.Conn) context.Context {
	return context.WithValue(ctx, connectionKey{}, &connection{})
}

// connectionOf returns the cache of the request's connection, or an empty one if the server does not use ConnContext.
func connectionOf(ctx context.Context) *connection {
	if c, ok := ctx.Value(connectionKey{}).(*connection); ok {
		return c
	}
	return &connection{}
}
