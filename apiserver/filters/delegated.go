package filters

import (
	"net/http"

	"quorate.dev/apiserver/request"
)

// delegated releases the seats of requests for extension API servers. Other limits bound these requests, so that a slow
// extension API server takes no seats from other requests.
type delegated struct{ next http.Handler }

func (f delegated) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if record := request.From(r.Context()); record.Delegate != nil {
		record.ReleaseSeat()
	}
	f.next.ServeHTTP(w, r)
}
