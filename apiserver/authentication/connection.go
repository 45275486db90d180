package authentication

import (
	"context"
	"net"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
)

// connection is what was found out about the other end of one connection.
type connection struct {
	local  *authenticator.Response // set for calls within the process, which have no other end
	client atomic.Pointer[decision]
	proxy  atomic.Pointer[decision]
}

// verdict is the outcome of verifying a connection's certificate. Without err and response it is valid but names nobody: a front
// proxy's, or one without a common name.
type decision struct {
	bundle   *bundle // against which it was verified
	until    time.Time
	response *authenticator.Response
	err      error
}

// holds tells whether the verdict would be the same today.
func (v *decision) holds(current *bundle, now time.Time) bool {
	return v != nil && v.bundle == current && now.Before(v.until)
}

type connectionKey struct{}

// ConnContext gives a connection a place for its verdicts; it is a http.Server's ConnContext.
func ConnContext(ctx context.Context, _ net.Conn) context.Context {
	return context.WithValue(ctx, connectionKey{}, &connection{})
}

// connectionOf returns the place for the connection's verdicts; one that is forgotten at once if the server keeps none.
func connectionOf(ctx context.Context) *connection {
	if c, ok := ctx.Value(connectionKey{}).(*connection); ok {
		return c
	}
	return &connection{}
}
