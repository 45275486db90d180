package filters

import (
	"net/http"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/request"
)

// slowTraceVerbosity is the verbosity from which the traces of slow requests are logged, as in kube-apiserver.
const slowTraceVerbosity = 2

// begin creates the record and the response writer that all other filters and the handler share.
type begin struct {
	next   http.Handler
	clock  clock.PassiveClock
	logger logr.Logger
	// traced is set if the spans of requests are exported.
	traced  bool
	sending *sending
}

func (f *begin) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	record := request.Begin(r, f.clock.Now(), f.logger)
	record.Traced = f.traced || f.logger.V(slowTraceVerbosity).Enabled()
	answer := &response{under: w, sending: f.sending, record: record}
	defer answer.end()
	f.next.ServeHTTP(answer, r.WithContext(record))
}
