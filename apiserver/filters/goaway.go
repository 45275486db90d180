package filters

import (
	"math/rand/v2"
	"net/http"
)

// goaway now and then asks an HTTP/2 client to connect anew, so that clients spread over replicas.
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
		w.Header().Set("Connection", "close") // net/http sends GOAWAY for it
	}
	f.next.ServeHTTP(w, r)
}
