package filters

import (
	"bufio"
	"context"
	"encoding/json"
	"maps"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/apiserver/request"
)

// response is the response writer that all filters and the handler share. It knows what has been sent, and expire stops
// the handler's writes at the deadline. mu serializes the handler with expire, which runs on a timer; expire may
// write only until finish.
type response struct {
	under http.ResponseWriter

	// Set by guard for requests with a deadline:
	deadline context.Context
	http1    bool
	header   http.Header // the handler's copy; it replaces under's when the response starts

	log      *responseLog   // nil: the response is not logged
	onStatus func(code int) // called with the first status code of the handler, with mu locked; may be nil
	writing  *time.Duration // the time spent in writes of the body is added to it; nil: not measured

	sending *sending // nil: clients may read as slowly as they like
	record  *request.Record
	sender  *sender // nil until a write may block; used by the handler only

	mu        sync.Mutex
	status    int   // 0 until the response starts
	size      int64 // of the body; written by the handler only
	late      bool  // The handler started the response after the deadline, usually with its own error.
	expired   bool  // Writes of the handler are discarded.
	truncated bool  // expired after the response had started
	hijacked  bool
	finished  bool // The handler has returned; under must not be used any more.
}

// guard gives the handler its own copy of the headers, so that expire can write concurrently.
func (w *response) guard(deadline context.Context, http1 bool) {
	w.deadline, w.http1 = deadline, http1
	w.header = maps.Clone(w.under.Header())
	if w.header == nil {
		w.header = make(http.Header)
	}
}

// Header implements http.ResponseWriter.
func (w *response) Header() http.Header {
	if w.header != nil {
		return w.header
	}
	return w.under.Header()
}

// WriteHeader implements http.ResponseWriter.
func (w *response) WriteHeader(status int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.noteStatus(status)
	w.writeHeader(status)
}

// noteStatus calls onStatus once. The code may never be sent, if the response has expired.
func (w *response) noteStatus(code int) {
	if w.onStatus != nil {
		note := w.onStatus
		w.onStatus = nil
		note(code)
	}
}

func (w *response) writeHeader(status int) {
	if w.expired || w.hijacked || w.status != 0 {
		return
	}
	if w.header != nil {
		under := w.under.Header()
		clear(under)
		maps.Copy(under, w.header)
	}
	if status >= http.StatusOK || status == http.StatusSwitchingProtocols {
		w.status = status
		w.log.sent(status)
		w.late = w.deadline != nil && w.deadline.Err() != nil
	}
	w.under.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *response) Write(p []byte) (int, error) {
	w.mu.Lock()
	w.noteStatus(http.StatusOK)
	if w.status == 0 {
		w.writeHeader(http.StatusOK)
	}
	expired := w.expired
	w.mu.Unlock()
	if expired {
		return 0, http.ErrHandlerTimeout
	}
	// Without the lock, because a slow client may block this write until expire ends it.
	if w.writing != nil {
		defer func(began time.Time) { *w.writing += time.Since(began) }(time.Now())
	}
	w.log.wrote(p)
	n, err := w.send(p)
	w.size += int64(n)
	return n, err
}

// send writes p to the connection. It lets sending follow a response that may block.
func (w *response) send(p []byte) (int, error) {
	if w.sender == nil {
		if w.sending == nil || w.size+int64(len(p)) <= unblockedBody {
			return w.under.Write(p)
		}
		w.sender = w.sending.begin(w.under, w.record)
	}
	return w.sender.write(p)
}

// end must be called when the handler has returned.
func (w *response) end() {
	if w.sender != nil {
		w.sender.end()
	}
}

// Flush implements http.Flusher.
func (w *response) Flush() { _ = w.FlushError() }

// FlushError is Flush for http.ResponseController.
func (w *response) FlushError() error {
	w.mu.Lock()
	if w.status == 0 {
		w.writeHeader(http.StatusOK)
	}
	expired := w.expired
	w.mu.Unlock()
	if expired {
		return http.ErrHandlerTimeout
	}
	return http.NewResponseController(w.under).Flush()
}

// Hijack implements http.Hijacker.
func (w *response) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.expired {
		return nil, nil, http.ErrHandlerTimeout
	}
	w.noteStatus(http.StatusSwitchingProtocols)
	conn, buffer, err := http.NewResponseController(w.under).Hijack()
	w.hijacked = w.hijacked || err == nil
	return conn, buffer, err
}

// Unwrap lets a http.ResponseController reach the connection.
func (w *response) Unwrap() http.ResponseWriter { return w.under }

// started reports whether part of the response has been sent.
func (w *response) started() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.status != 0 || w.hijacked
}

// sent returns the status code and the size of the body. The status is 200 if the handler set none, and 0 if it
// hijacked the connection.
func (w *response) sent() (int, int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.status == 0 && !w.hijacked {
		return http.StatusOK, w.size
	}
	return w.status, w.size
}

// lateTimeout bounds a response that the handler started after the deadline.
const lateTimeout = time.Second

// expire ends the response at the deadline: with 504 if it has not started, else by failing reads and writes.
func (w *response) expire() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.hijacked || w.expired || w.finished {
		return
	}
	control := http.NewResponseController(w.under)
	if w.late {
		_ = control.SetWriteDeadline(time.Now().Add(lateTimeout))
		return
	}
	w.expired = true
	past := time.Unix(1, 0)
	_ = control.SetReadDeadline(past) // first, because HTTP/1 does not write while a body is being read
	if w.status != 0 {
		w.truncated = true
		_ = control.SetWriteDeadline(past)
		return
	}
	w.status = http.StatusGatewayTimeout
	w.log.sent(w.status)
	if w.http1 {
		w.under.Header().Set("Connection", "close") // the read deadline makes the connection unusable
	}
	writeTimeout(w.under)
	_ = control.Flush() // completes the response of HTTP/1; that of HTTP/2 ends when the handler returns
}

// finish makes later calls of expire do nothing and resets the write deadline for the connection's next request. It
// reports whether the deadline passed before the response was complete, and whether the response was truncated.
func (w *response) finish() (expired, truncated bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.finished = true
	if w.late {
		_ = http.NewResponseController(w.under).SetWriteDeadline(time.Time{})
	}
	return w.expired || w.late, w.truncated
}

// writeTimeout writes the response of kube-apiserver's timeout filter: a Status without a kind, as plain text.
func writeTimeout(w http.ResponseWriter) {
	writeStatus(w, &request.TimedOut().ErrStatus, "text/plain; charset=utf-8")
}

// writeJSON writes a Status in JSON, whatever the client accepts.
func writeJSON(w http.ResponseWriter, err error) {
	writeStatus(w, request.StatusOf(err), "application/json")
}

func writeStatus(w http.ResponseWriter, status *metav1.Status, contentType string) {
	body, _ := json.Marshal(status) // marshalling a Status cannot fail
	headers := w.Header()
	headers.Set("Content-Type", contentType)
	headers.Set("Content-Length", strconv.Itoa(len(body)+1))
	w.WriteHeader(int(status.Code))
	_, _ = w.Write(append(body, '\n'))
}
