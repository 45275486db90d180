package filters

import (
	"context"
	"errors"
	"net/http"
	"time"

	"quorate.dev/apiserver/request"
)

// timeout responds with 504 if the handler has not responded at the deadline, and aborts a response that is not
// complete by then.
//
// Handlers run in the connection's goroutine, because they normally return when their context ends. If a handler does
// not return, or waits for its client, a timer sends the response and makes further reads and writes fail.
// kube-apiserver's timeout filter starts another goroutine for each handler instead.
type timeout struct {
	next    http.Handler
	metrics *Metrics
}

func (f *timeout) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	record := request.From(r.Context())
	answer, ok := w.(*response)
	if record.LongRunning {
		// The server's WriteTimeout bounds only requests that are not long-running. Hijacked connections have no
		// deadline.
		_ = http.NewResponseController(w).SetWriteDeadline(time.Time{})
	}
	if record.LongRunning || !ok {
		f.next.ServeHTTP(w, r)
		return
	}
	answer.guard(record.Context, r.ProtoMajor == 1)
	at, _ := record.Context.Deadline()
	timer := time.AfterFunc(time.Until(at), answer.expire)
	defer f.finish(answer, record, r, timer)
	f.next.ServeHTTP(w, r)
}

// finish ends the request after the handler has returned.
func (f *timeout) finish(answer *response, record *request.Record, r *http.Request, timer *time.Timer) {
	timer.Stop()
	if errors.Is(record.Context.Err(), context.DeadlineExceeded) {
		// The timer may have been stopped before it fired.
		answer.expire()
	}
	expired, truncated := answer.finish()
	if expired {
		f.metrics.terminated(record, r, http.StatusGatewayTimeout)
	}
	if truncated {
		panic(http.ErrAbortHandler)
	}
}
