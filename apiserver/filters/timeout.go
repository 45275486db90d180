package filters

import (
	"context"
	"errors"
	"net/http"
	"time"

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
	answer.guard(record.Context, r.ProtoMajor == 1)
	at, _ := record.Context.Deadline()
	timer := time.AfterFunc(time.Until(at), answer.expire)
	defer f.settle(answer, record, r, timer)
	f.next.ServeHTTP(w, r)
}

// settle ends the request after the handler has returned.
func (f *timeout) settle(answer *response, record *request.Record, r *http.Request, timer *time.Timer) {
	timer.Stop()
	if errors.Is(record.Context.Err(), context.DeadlineExceeded) {
		answer.expire() // unless the timer has
	}
	expired, cut := answer.settle()
	if expired {
		f.metrics.terminated(record, r, http.StatusGatewayTimeout)
	}
	if cut {
		panic(http.ErrAbortHandler)
	}
}
