package filters

import (
	"context"
	"errors"
	"net/http"

	"quorate.dev/apiserver/request"
)

// timeout answers 504 when the deadline passes before the handler has answered, and aborts an answer that is not
// complete by then.
//
// Handlers end by themselves when their context does, so they run on the connection's own goroutine. For one that does
// not, or that waits for its client, the answer is given and reading and writing are stopped from the side.
type timeout struct {
	next    http.Handler
	metrics *Metrics
}

func (f *timeout) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	record := request.From(r.Context())
	answer, ours := w.(*response)
	if record.LongRunning || !ours {
		f.next.ServeHTTP(w, r)
		return
	}
	answer.guard()
	expired := make(chan struct{})
	stop := context.AfterFunc(record.Context, func() {
		defer close(expired)
		if errors.Is(record.Context.Err(), context.DeadlineExceeded) {
			answer.expire()
		}
	})
	defer f.settle(answer, record, r, stop, expired)
	f.next.ServeHTTP(w, r)
}

// settle ends a request once nobody else touches its response any more.
func (f *timeout) settle(answer *response, record *request.Record, r *http.Request, stop func() bool, expired <-chan struct{}) {
	if stop() {
		return
	}
	<-expired
	if answer.expired {
		f.metrics.terminated(record, r, http.StatusGatewayTimeout)
	}
	if answer.cut {
		panic(http.ErrAbortHandler)
	}
}
