package filters

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/apiserver/request"
)

// response is the response writer that all filters and the handler share. It records what has been sent, and expire
// ends the handler's writes at the deadline. mu serializes the handler and expire, which runs on a timer. expire may
// write only until finish is called.
type response struct {
	under http.ResponseWriter

	// Set by guard for requests with a deadline:
	deadline context.Context
	http1    bool
	// header is the handler's copy of the headers; it replaces the headers of under when the response starts.
	header http.Header

	// log is nil if the response is not logged.
	log *responseLog
	// onStatus is called with the handler's first status code, with mu locked. It may be nil.
	onStatus func(code int)
	// writing is increased by the time that writes of the body take; nil if that time is not measured.
	writing *time.Duration

	// sending is nil if clients may read arbitrarily slowly.
	sending *sending
	record  *request.Record
	// sender is nil until a write may block. Only the handler uses it.
	sender *sender

	mu        sync.Mutex
	status    int   // 0 until the response starts
	size      int64 // size of the body in bytes; written by the handler only
	late      bool  // The handler started the response after the deadline; it may continue for lateTimeout.
	expired   bool  // Writes of the handler are discarded.
	truncated bool  // expired after the response had started
	extended  bool  // The deadline has passed, and the response may continue for lateTimeout.
	hijacked  bool
	// finished is set when the handler has returned. under must not be used any more.
	finished bool
}

// guard copies the headers for the handler, so that expire can write its own headers concurrently.
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

// noteStatus calls onStatus once. If the response has expired, the code is recorded but not sent.
func (w *response) noteStatus(code int) {
	if w.onStatus != nil {
		note := w.onStatus
		w.onStatus = nil
		note(code)
	}
}

func (w *response) writeHeader(status int) {
	if status >= http.StatusBadRequest && w.status == 0 && w.isPastDeadline() {
		w.expireLocked()
	}
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

// isPastDeadline reports whether the deadline has passed. An error that the handler returns afterwards is usually a
// consequence of the deadline, with a text that depends on the component it waited for, such as a webhook.
// kube-apiserver's clients get the error of the timeout filter instead.
func (w *response) isPastDeadline() bool {
	if w.deadline == nil {
		return false
	}
	at, ok := w.deadline.Deadline()
	return errors.Is(w.deadline.Err(), context.DeadlineExceeded) || ok && !time.Now().Before(at)
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
	// The lock is not held, because a slow client may block this write until expire ends it.
	if w.writing != nil {
		defer func(began time.Time) { *w.writing += time.Since(began) }(time.Now())
	}
	w.log.wrote(p)
	n, err := w.send(p)
	w.size += int64(n)
	return n, err
}

// send writes p to the connection. From the first write that may block, sending tracks the response.
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

// sent returns the status code and the size of the body in bytes. The status code is 200 if the handler set none, and 0
// if it hijacked the connection.
func (w *response) sent() (int, int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.status == 0 && !w.hijacked {
		return http.StatusOK, w.size
	}
	return w.status, w.size
}

// lateTimeout bounds the time after the deadline for the rest of a response that the handler has started after the
// deadline, or for the rest of an error.
const lateTimeout = time.Second

// expire ends the response at the deadline: with 504 if the response has not started, otherwise by failing reads and
// writes. A response that the handler started after the deadline may continue for lateTimeout, and so may an error:
// usually the handler has written all of it when it returns just after the deadline.
func (w *response) expire() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.expireLocked()
}

// expireLocked implements expire. The caller holds w.mu.
func (w *response) expireLocked() {
	if w.hijacked || w.expired || w.finished {
		return
	}
	control := http.NewResponseController(w.under)
	if w.late || w.status >= http.StatusBadRequest {
		w.extended = true
		_ = control.SetWriteDeadline(time.Now().Add(lateTimeout))
		return
	}
	w.expired = true
	past := time.Unix(1, 0)
	// The read deadline is set first, because net/http does not write to an HTTP/1 connection while a body is being
	// read.
	_ = control.SetReadDeadline(past)
	if w.status != 0 {
		w.truncated = true
		_ = control.SetWriteDeadline(past)
		return
	}
	w.status = http.StatusGatewayTimeout
	w.log.sent(w.status)
	if w.http1 {
		// The read deadline has made the connection unusable.
		w.under.Header().Set("Connection", "close")
	}
	writeTimeout(w.under)
	// Flush completes a response over HTTP/1; a response over HTTP/2 ends when the handler returns.
	_ = control.Flush()
}

// finish makes later calls of expire do nothing and resets the write deadline for the connection's next request. It
// reports whether the deadline passed before the response was complete, and whether the response was truncated.
func (w *response) finish() (expired, truncated bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.finished = true
	if w.extended {
		_ = http.NewResponseController(w.under).SetWriteDeadline(time.Time{})
	}
	return w.expired || w.late, w.truncated
}

// writeTimeout writes the response of kube-apiserver's timeout filter: a Status without a kind, as plain text.
func writeTimeout(w http.ResponseWriter) {
	writeStatus(w, &request.TimedOut().ErrStatus, "text/plain; charset=utf-8")
}

// writeJSON writes an error as a Status in JSON, regardless of the Accept header.
func writeJSON(w http.ResponseWriter, err error) {
	writeStatus(w, request.StatusOf(err), "application/json")
}

func writeStatus(w http.ResponseWriter, status *metav1.Status, contentType string) {
	// Marshalling a Status cannot fail.
	body, _ := json.Marshal(status)
	headers := w.Header()
	headers.Set("Content-Type", contentType)
	headers.Set("Content-Length", strconv.Itoa(len(body)+1))
	w.WriteHeader(int(status.Code))
	_, _ = w.Write(append(body, '\n'))
}
