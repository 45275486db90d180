package filters

import (
	"math/rand/v2"
	"net/http"

	"quorate.dev/apiserver/request"
)

// goaway closes HTTP/2 connections at random, so that clients spread over the replicas when they reconnect, and all that are
// in use before the server stops. Requests and watches that a connection carries are not affected.
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
