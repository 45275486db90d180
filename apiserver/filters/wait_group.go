package filters

import (
	"net/http"

	"quorate.dev/apiserver/request"
)

// waitGroup counts requests that are not long-running, so that a stopping server can wait until they are done.
type waitGroup struct {
	next     http.Handler
	requests *request.Inflight
}

func (f waitGroup) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if request.From(r.Context()).LongRunning {
		f.next.ServeHTTP(w, r)
		return
	}
	if !f.requests.Enter() {
		if isExempt(r) {
			f.next.ServeHTTP(w, r)
			return
		}
		refuseShuttingDown(w)
		return
	}
	defer f.requests.Leave()
	f.next.ServeHTTP(w, r)
}
