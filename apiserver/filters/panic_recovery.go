package filters

import (
	"fmt"
	"net/http"
	"runtime/debug"

	"quorate.dev/apiserver/request"
)

// panicRecovery responds with 500 when a handler panics, or aborts the response if it has started. kube-apiserver also
// writes the 500 but panics again, so that net/http discards it.
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

// recovered handles a panic. Handlers such as Go's reverse proxy panic with http.ErrAbortHandler to abort a response
// deliberately; net/http then closes the connection or resets the stream.
func (f *panicRecovery) recovered(w http.ResponseWriter, r *http.Request, reason any) {
	record := request.From(r.Context())
	logger := record.Logger
	if reason == http.ErrAbortHandler { //nolint:errorlint // net/http compares the value too
		f.metrics.aborted(record, r)
		logger.Info("Timeout or abort while handling", "method", r.Method, "URI", r.RequestURI, "auditID", record.AuditID)
		panic(reason)
	}
	logger.Error(fmt.Errorf("%v", reason), "Request caused a panic", "method", r.Method, "URI", r.RequestURI,
		"auditID", record.AuditID, "stack", string(debug.Stack()))
	if answer, ok := w.(*response); ok && answer.started() {
		panic(http.ErrAbortHandler)
	}
	http.Error(w, "This request caused apiserver to panic. Look in the logs for details.", http.StatusInternalServerError)
}
