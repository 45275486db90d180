package filters

import (
	"fmt"
	"net/http"
	"runtime/debug"

	"quorate.dev/apiserver/request"
)

// panicRecovery answers a panicking handler's request with 500, or aborts it when the answer has begun. kube-apiserver
// writes the 500, too, but panics again, upon which net/http drops it.
type panicRecovery struct {
	next    http.Handler
	metrics *Metrics
}

func (f *panicRecovery) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	defer func() {
		if reason := recover(); reason != nil {
			f.recovered(w, r, reason)
		}
	}()
	f.next.ServeHTTP(w, r)
}

// recovered deals with a panic. http.ErrAbortHandler is how handlers, among them Go's reverse proxy, abort a response
// on purpose; net/http closes the connection or resets the stream for it.
func (f *panicRecovery) recovered(w http.ResponseWriter, r *http.Request, reason any) {
	record := request.From(r.Context())
	logger := record.Logger
	if reason == http.ErrAbortHandler {
		f.metrics.aborted(record, r)
		logger.Info("Timeout or abort while handling", "method", r.Method, "URI", r.RequestURI, "auditID", record.AuditID)
		panic(reason)
	}
	logger.Error(fmt.Errorf("%v", reason), "A request caused a panic", "method", r.Method, "URI", r.RequestURI,
		"auditID", record.AuditID, "stack", string(debug.Stack()))
	if answer, ok := w.(*response); ok && answer.begun() {
		panic(http.ErrAbortHandler)
	}
	http.Error(w, "This request caused apiserver to panic. Look in the logs for details.", http.StatusInternalServerError)
}
