package filters

import (
	"math/rand/v2"
	"net/http"
)

// goaway closes HTTP/2 connections at random, so that clients spread over the replicas when they reconnect.
type goaway struct {
	next   http.Handler
	chance float64
}

func newGoaway(next http.Handler, chance float64) http.Handler {
	if chance <= 0 {
		return next
	}
	return goaway{next: next, chance: chance}
}

func (f goaway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor == 2 && rand.Float64() < f.chance {
		w.Header().Set("Connection", "close") // makes net/http send GOAWAY
	}
	f.next.ServeHTTP(w, r)
}
