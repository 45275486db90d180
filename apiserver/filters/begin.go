package filters

import (
	"net/http"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/request"
)

// begin creates the record and the response writer that all other filters share.
type begin struct {
	next   http.Handler
	clock  clock.PassiveClock
	logger logr.Logger
}

func (f *begin) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	record := request.Begin(r, f.clock.Now(), f.logger)
	f.next.ServeHTTP(&response{under: w}, r.WithContext(record))
}
