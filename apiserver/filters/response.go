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

	"quorate.dev/apiserver/request"
)

// response is the writer that all filters and the handler share. It knows what has been sent, and it can be taken
// away from a handler whose time is up.
type response struct {
	under http.ResponseWriter

	// Set by guard, for requests with a deadline:
	deadline context.Context
	http1    bool
	header   http.Header // the handler's own, copied to under's when the answer begins

	mu      sync.Mutex
	status  int // 0: the answer has not begun
	size    int64
	late    bool // the answer began after the deadline: the handler's own words on it
	expired bool // nothing the handler writes is sent any more
	cut     bool // expired in the middle of the answer
	taken   bool // hijacked
	settled bool // the handler has returned: nobody may touch under any more
}

// guard gives the handler headers of its own, so that expire can write without it.
func (w *response) guard(deadline context.Context, http1 bool) {
	w.deadline, w.http1 = deadline, http1
	w.header = maps.Clone(w.under.Header())
	if w.header == nil {
		w.header = make(http.Header)
	}
}

// Header returns the headers to be sent.
func (w *response) Header() http.Header {
	if w.header != nil {
		return w.header
	}
	return w.under.Header()
}

// WriteHeader begins the answer.
func (w *response) WriteHeader(status int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writeHeader(status)
}

func (w *response) writeHeader(status int) {
	if w.expired || w.taken || w.status != 0 {
		return
	}
	if w.header != nil {
		under := w.under.Header()
		clear(under)
		maps.Copy(under, w.header)
	}
	if status >= http.StatusOK || status == http.StatusSwitchingProtocols {
		w.status = status
		w.late = w.deadline != nil && w.deadline.Err() != nil
	}
	w.under.WriteHeader(status)
}

// Write sends part of the body.
func (w *response) Write(p []byte) (int, error) {
	w.mu.Lock()
	if w.status == 0 {
		w.writeHeader(http.StatusOK)
	}
	expired := w.expired
	w.mu.Unlock()
	if expired {
		return 0, http.ErrHandlerTimeout
	}
	// Not under the lock: a slow client may block this until expire ends it.
	n, err := w.under.Write(p)
	w.size += int64(n)
	return n, err
}

// Flush sends what is buffered.
func (w *response) Flush() { _ = w.FlushError() }

// FlushError sends what is buffered.
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

// Hijack hands the connection to the handler, for protocols that are not HTTP.
func (w *response) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.expired {
		return nil, nil, http.ErrHandlerTimeout
	}
	conn, buffer, err := http.NewResponseController(w.under).Hijack()
	w.taken = w.taken || err == nil
	return conn, buffer, err
}

// Unwrap lets a http.ResponseController reach the connection.
func (w *response) Unwrap() http.ResponseWriter { return w.under }

// begun tells whether part of the answer has been sent.
func (w *response) begun() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.status != 0 || w.taken
}

// sent returns the status, which is 200 if the handler set none and 0 if it took the connection, and the size of the
// body.
func (w *response) sent() (int, int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.status == 0 && !w.taken {
		return http.StatusOK, w.size
	}
	return w.status, w.size
}

// lateAnswer is how long a handler may take to tell that its deadline passed.
const lateAnswer = time.Second

// expire takes the response away from its handler: with 504 if the answer has not begun, else by cutting it off.
func (w *response) expire() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.taken || w.expired || w.settled {
		return
	}
	control := http.NewResponseController(w.under)
	if w.late {
		_ = control.SetWriteDeadline(time.Now().Add(lateAnswer))
		return
	}
	w.expired = true
	past := time.Unix(1, 0)
	_ = control.SetReadDeadline(past) // first: HTTP/1 does not write while a body is being read
	if w.status != 0 {
		w.cut = true
		_ = control.SetWriteDeadline(past)
		return
	}
	w.status = http.StatusGatewayTimeout
	if w.http1 {
		w.under.Header().Set("Connection", "close") // nothing more can be read from it
	}
	writeJSON(w.under, request.TimedOut())
	_ = control.Flush() // clients of HTTP/1 have their whole answer now, those of HTTP/2 all but its end
}

// settle makes expire do nothing from now on, and undoes what it left for the connection's next request. It tells
// whether the deadline decided the answer, and whether in its middle.
func (w *response) settle() (expired, cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.settled = true
	if w.late {
		_ = http.NewResponseController(w.under).SetWriteDeadline(time.Time{})
	}
	return w.expired || w.late, w.cut
}

// writeJSON answers with a Status in JSON, whatever the client accepts.
func writeJSON(w http.ResponseWriter, err error) {
	status := request.StatusOf(err)
	body, _ := json.Marshal(status) // a Status always has JSON
	headers := w.Header()
	headers.Set("Content-Type", "application/json")
	headers.Set("Content-Length", strconv.Itoa(len(body)+1))
	w.WriteHeader(int(status.Code))
	_, _ = w.Write(append(body, '\n'))
}
