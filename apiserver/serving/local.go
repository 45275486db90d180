package serving

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"sync"

	"k8s.io/apiserver/pkg/authentication/user"

	"quorate.dev/apiserver/authentication"
)

// Local is a http.RoundTripper that hands requests to a handler in the same process, as the user given: for
// controllers that run within the server. Responses stream, so that watches work.
type Local struct {
	Handler http.Handler
	User    user.Info
}

// RoundTrip implements http.RoundTripper.
func (l Local) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(authentication.Local(r.Context(), l.User))
	incoming := r.Clone(ctx) // the handler may change headers, the caller keeps its own
	incoming.RequestURI, incoming.RemoteAddr = r.URL.RequestURI(), "local"
	incoming.Proto, incoming.ProtoMajor, incoming.ProtoMinor = "HTTP/1.1", 1, 1
	if incoming.Host == "" {
		incoming.Host = r.URL.Host
	}
	if incoming.Body == nil {
		incoming.Body = http.NoBody
	}
	reader, writer := io.Pipe()
	w := &localResponse{header: make(http.Header), body: writer, begun: make(chan struct{})}
	context.AfterFunc(ctx, func() { _ = writer.CloseWithError(context.Cause(ctx)) }) // whatever the handler does
	go l.serve(w, incoming, cancel)
	select {
	case <-w.begun:
	case <-ctx.Done():
		cancel()
		return nil, ctx.Err()
	}
	return &http.Response{
		Status: strconv.Itoa(w.status) + " " + http.StatusText(w.status), StatusCode: w.status,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: w.sent, ContentLength: w.length(),
		Body: &localBody{PipeReader: reader, cancel: cancel}, Request: r,
	}, nil
}

// serve runs the handler to its end.
func (l Local) serve(w *localResponse, r *http.Request, cancel context.CancelFunc) {
	defer func() {
		_ = r.Body.Close()
		defer cancel()
		if reason := recover(); reason != nil {
			// As over the network: the response breaks off.
			w.WriteHeader(http.StatusInternalServerError)
			_ = w.body.CloseWithError(io.ErrUnexpectedEOF)
			return
		}
		w.WriteHeader(http.StatusOK)
		_ = w.body.Close()
	}()
	l.Handler.ServeHTTP(w, r)
}

// localResponse is the handler's side of a response.
type localResponse struct {
	header http.Header
	body   *io.PipeWriter

	once   sync.Once
	begun  chan struct{} // closed when status and sent are set
	status int
	sent   http.Header
}

func (w *localResponse) Header() http.Header { return w.header }

// WriteHeader begins the response; the caller gets it now.
func (w *localResponse) WriteHeader(status int) {
	if status < http.StatusOK {
		return
	}
	w.once.Do(func() {
		w.status, w.sent = status, w.header.Clone()
		close(w.begun)
	})
}

// Write hands a part of the body to the caller, and waits until it has read it.
func (w *localResponse) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(p)
}

// Flush begins the response; there is nothing buffered.
func (w *localResponse) Flush() { w.WriteHeader(http.StatusOK) }

// length returns the length the handler announced, -1 if none.
func (w *localResponse) length() int64 {
	if length, err := strconv.ParseInt(w.sent.Get("Content-Length"), 10, 64); err == nil {
		return length
	}
	return -1
}

// localBody is the caller's side of a response's body. Closing it ends the request.
type localBody struct {
	*io.PipeReader
	cancel context.CancelFunc
}

// Close ends the request.
func (b *localBody) Close() error {
	b.cancel()
	return b.PipeReader.Close()
}
