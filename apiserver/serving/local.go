package serving

import (
	"context"
	"io"
	"net/http"
	"strconv"
	"sync"

	"k8s.io/apiserver/pkg/authentication/user"

	"quorate.dev/apiserver/authentication"
	"quorate.dev/apiserver/request"
	"quorate.dev/writelimit"
)

// Local is an http.RoundTripper that passes requests to a handler in the same process, authenticated as User. It
// replaces kube-apiserver's loopback client. Responses are streamed, so that watches work.
type Local struct {
	Handler http.Handler
	User    user.Info
	// Writer is the name under which writes are limited and counted.
	Writer string
}

// RoundTrip implements http.RoundTripper.
func (l Local) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(writelimit.WithWriter(authentication.Local(r.Context(), l.User), l.Writer))
	incoming := r.Clone(ctx) // a RoundTripper must not modify the request, and filters remove headers
	incoming.RequestURI, incoming.RemoteAddr = r.URL.RequestURI(), request.LocalAddress
	incoming.Proto, incoming.ProtoMajor, incoming.ProtoMinor = "HTTP/1.1", 1, 1
	if incoming.Host == "" {
		incoming.Host = r.URL.Host
	}
	if incoming.Body == nil {
		incoming.Body = http.NoBody
	}
	reader, writer := io.Pipe()
	w := &localResponse{header: make(http.Header), body: writer, started: make(chan struct{})}
	// The caller is unblocked even if the handler ignores its context.
	context.AfterFunc(ctx, func() { _ = writer.CloseWithError(context.Cause(ctx)) })
	go l.serve(w, incoming, cancel)
	select {
	case <-w.started:
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

// serve runs the handler until it returns or panics.
func (l Local) serve(w *localResponse, r *http.Request, cancel context.CancelFunc) {
	defer func() {
		_ = r.Body.Close()
		defer cancel()
		if reason := recover(); reason != nil {
			// The response is truncated, as it would be over the network.
			w.WriteHeader(http.StatusInternalServerError)
			_ = w.body.CloseWithError(io.ErrUnexpectedEOF)
			return
		}
		w.WriteHeader(http.StatusOK)
		_ = w.body.Close()
	}()
	l.Handler.ServeHTTP(w, r)
}

// localResponse is the handler's http.ResponseWriter.
type localResponse struct {
	header http.Header
	body   *io.PipeWriter

	once sync.Once
	// started is closed when status and sent are set; they do not change afterwards.
	started chan struct{}
	status  int
	sent    http.Header
}

func (w *localResponse) Header() http.Header { return w.header }

// WriteHeader starts the response, after which RoundTrip returns.
func (w *localResponse) WriteHeader(status int) {
	if status < http.StatusOK {
		return
	}
	w.once.Do(func() {
		w.status, w.sent = status, w.header.Clone()
		close(w.started)
	})
}

// Write blocks until the caller has read p.
func (w *localResponse) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(p)
}

// Flush starts the response. The body is not buffered.
func (w *localResponse) Flush() { w.WriteHeader(http.StatusOK) }

// length returns the Content-Length, or -1 if the handler has set none.
func (w *localResponse) length() int64 {
	if length, err := strconv.ParseInt(w.sent.Get("Content-Length"), 10, 64); err == nil {
		return length
	}
	return -1
}

// localBody is the body of the response for the caller. Closing it cancels the request.
type localBody struct {
	*io.PipeReader
	cancel context.CancelFunc
}

// Close implements io.Closer.
func (b *localBody) Close() error {
	b.cancel()
	return b.PipeReader.Close()
}
