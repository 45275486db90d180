package wire

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// connect starts a server with HTTP/2 and returns a connection to it, both until the end of the test.
func connect(t *testing.T, handler http.HandlerFunc) (*Connection, chan error) {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	authorities := x509.NewCertPool()
	authorities.AddCert(server.Certificate())
	connection, err := Dial(t.Context(), server.Listener.Addr().String(), &tls.Config{
		RootCAs: authorities, ServerName: "example.com", NextProtos: []string{"h2"},
	})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- connection.Serve() }()
	t.Cleanup(connection.Close)
	return connection, ended
}

func TestBodyLargerThanTheWindow(t *testing.T) {
	const size = 3 * streamWindow
	connection, _ := connect(t, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, strings.Repeat("0123456789abcdef", size/16))
	})
	response, err := connection.Do(t.Context(), Request{Method: "GET", Path: "/"}, 20)
	if err != nil || response.Status != 200 || response.Size != size || string(response.Body) != "0123456789abcdef0123" {
		t.Errorf("status %d, %d bytes, %q, %v", response.Status, response.Size, response.Body, err)
	}
}

// TestConcurrentRequests sends more bytes than the first window of the connection permits.
func TestConcurrentRequests(t *testing.T) {
	connection, _ := connect(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Retry-After", r.Header.Get("Content-Type"))
		w.WriteHeader(http.StatusTooManyRequests)
		_, _ = io.Copy(w, r.Body)
	})
	var group sync.WaitGroup
	for i := range 40 {
		group.Go(func() {
			body := strings.Repeat(fmt.Sprint(i%10), largestBody-i)
			response, err := connection.Do(t.Context(),
				Request{Method: "POST", Path: "/", ContentType: "text", Body: []byte(body)}, largestBody)
			if err != nil || response.Status != 429 || response.RetryAfter != "text" || string(response.Body) != body {
				t.Errorf("request %d: status %d, %d bytes, %v", i, response.Status, response.Size, err)
			}
		})
	}
	group.Wait()
	_, err := connection.Do(t.Context(), Request{Method: "POST", Path: "/", Body: make([]byte, largestBody+1)}, 0)
	if err == nil {
		t.Error("no error for a body that is too large")
	}
}

func TestRequestsThatEnd(t *testing.T) {
	started := make(chan struct{}, 2)
	canceled := make(chan struct{}, 2)
	connection, ended := connect(t, func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).Flush()
		started <- struct{}{}
		<-r.Context().Done()
		canceled <- struct{}{}
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-started
		cancel()
	}()
	if _, err := connection.Do(ctx, Request{Method: "GET", Path: "/"}, 0); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want that the context was canceled", err)
	}
	<-canceled // the server has received the reset of the stream
	go func() {
		<-started
		connection.Close()
	}()
	if _, err := connection.Do(t.Context(), Request{Method: "GET", Path: "/"}, 0); !errors.Is(err, errClosed) {
		t.Errorf("got %v, want %v", err, errClosed)
	}
	<-canceled
	<-ended
	if err := connection.Err(); !errors.Is(err, errClosed) {
		t.Errorf("the connection has ended with %v", err)
	}
	if _, err := connection.Do(t.Context(), Request{Method: "GET", Path: "/"}, 0); !errors.Is(err, errClosed) {
		t.Errorf("a request after the end: %v", err)
	}
}
