package filters

import (
	"math/rand/v2"
	"net/http"

	"quorate.dev/apiserver/request"
)

// goaway closes HTTP/2 connections at random, so that clients are balanced over the replicas when they reconnect. In
// the second half of the shutdown delay, it closes every connection that has a new request. Running requests and
// watches of a connection are not affected.
type goaway struct {
	next   http.Handler
	chance float64
	drain  *request.Drain
}

func (f goaway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor == 2 && (f.drain.MovingClients() || f.chance > 0 && rand.Float64() < f.chance) {
		w.Header().Set("Connection", "close") // makes net/http send GOAWAY
	}
	f.next.ServeHTTP(w, r)
}
