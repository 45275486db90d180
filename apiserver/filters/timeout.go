package filters

import (
	"context"
	"errors"
	"net/http"
	"time"

	"quorate.dev/apiserver/request"
)

// timeout responds with 504 when the deadline passes before the handler has responded, and aborts a response that is
// not complete by then.
//
// Handlers return when their context ends, so that they run on the goroutine of the connection. For a handler that does
// not, or that waits for its client, a timer responds and makes further reads and writes fail. kube-apiserver instead
// runs every handler on a goroutine of its own.
type timeout struct {
	next    http.Handler
	metrics *Metrics
}

func (f *timeout) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	record := request.From(r.Context())
	answer, ok := w.(*response)
	if record.LongRunning {
		// The server's WriteTimeout bounds other requests only. Hijacked connections have no deadline.
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
		answer.expire() // in case the timer has not
	}
	expired, truncated := answer.finish()
	if expired {
		f.metrics.terminated(record, r, http.StatusGatewayTimeout)
	}
	if truncated {
		panic(http.ErrAbortHandler)
	}
}
