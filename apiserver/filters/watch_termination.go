package filters

import (
	"context"
	"net/http"

	"quorate.dev/apiserver/request"
)

// watchTermination registers watches, so that a stopping server can end them by cancelling their contexts. The response
// then ends as if the watch had timed out.
type watchTermination struct {
	next    http.Handler
	watches *request.Watches
}

func (f watchTermination) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	record := request.From(r.Context())
	if record.Info.Verb != "watch" {
		f.next.ServeHTTP(w, r)
		return
	}
	ctx, cancel := context.WithCancel(record.Context)
	defer cancel()
	number, ok := f.watches.Enter(cancel)
	if !ok {
		refuseShuttingDown(w)
		return
	}
	defer f.watches.Leave(number)
	record.Context = ctx
	f.next.ServeHTTP(w, r)
}

// refuseShuttingDown responds that the server is shutting down. Retry-After is short, because a retry probably reaches
// another replica.
func refuseShuttingDown(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "1")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	writeJSON(w, request.ShuttingDown())
}
