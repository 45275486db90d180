package filters

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// bodyStyles are the ways in which an HTTP/1.1 client sends a body: what follows the Host header, and what follows when
// the handler has been called.
var bodyStyles = []struct{ name, headers, late string }{
	{name: "at once", headers: "Content-Length: 10\r\n\r\n0123456789"},
	{name: "late", headers: "Content-Length: 10\r\n\r\n", late: "0123456789"},
	{name: "half late", headers: "Content-Length: 10\r\n\r\n01234", late: "56789"},
	{name: "chunked", headers: "Transfer-Encoding: chunked\r\n\r\na\r\n0123456789\r\n0\r\n\r\n"},
	{name: "chunked late", headers: "Transfer-Encoding: chunked\r\n\r\n", late: "a\r\n0123456789\r\n0\r\n\r\n"},
	{name: "last chunk late", headers: "Transfer-Encoding: chunked\r\n\r\na\r\n0123456789\r\n", late: "0\r\n\r\n"},
	{name: "100-continue", headers: "Expect: 100-continue\r\nContent-Length: 10\r\n\r\n", late: "0123456789"},
	{name: "none", headers: "\r\n"},
}

// TestConnectionAfterUnreadBody sends three requests whose body no handler reads on one connection, each after the
// answer to the former, and then three without waiting for answers.
func TestConnectionAfterUnreadBody(t *testing.T) {
	called := make(chan struct{}, 1)
	f := start(t, true, nil, func(w http.ResponseWriter, r *http.Request) {
		select {
		case called <- struct{}{}:
		default:
		}
		if r.URL.Path == "/large" {
			_, _ = io.WriteString(w, strings.Repeat("x", 64<<10)) // more than net/http buffers
			return
		}
		http.NotFound(w, r)
	})
	for _, path := range []string{
		"/apis/example.com/v1/things", "/api/v1/namespaces/a/pods/b/nothing", "/nothing", "/large",
	} {
		for _, method := range []string{"POST", "PUT", "PATCH", "DELETE", "GET"} {
			for _, style := range bodyStyles {
				head := fmt.Sprintf("%s %s HTTP/1.1\r\nHost: a\r\nAuthorization: alice\r\n%s", method, path, style.headers)
				name := fmt.Sprintf("%s %s %s", method, path, style.name)
				t.Run(name, func(t *testing.T) { f.sendInTurn(t, called, head, style.late) })
				if !strings.HasPrefix(style.headers, "Expect") {
					t.Run(name+" pipelined", func(t *testing.T) { f.sendTogether(t, head+style.late) })
				}
			}
		}
	}
}

// connect opens an HTTP/1.1 connection that lasts for half a minute.
func (f *fixture) connect(t *testing.T) (*tls.Conn, *bufio.Reader) {
	t.Helper()
	conn, err := tls.Dial("tcp", f.server.Listener.Addr().String(), &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return conn, bufio.NewReader(conn)
}

func (f *fixture) sendInTurn(t *testing.T, called <-chan struct{}, head, late string) {
	conn, answers := f.connect(t)
	expects := strings.Contains(head, "Expect")
	for i := range 3 {
		select {
		case <-called:
		default:
		}
		if _, err := io.WriteString(conn, head); err != nil {
			t.Fatal(err)
		}
		if late != "" && !expects {
			<-called
			if _, err := io.WriteString(conn, late); err != nil {
				t.Fatal(err)
			}
		}
		response := receive(t, i, answers)
		if response.Close != expects {
			t.Fatalf("answer %d closes the connection: %t", i, response.Close)
		}
		if expects {
			return // The client has not been asked for the body.
		}
	}
}

func (f *fixture) sendTogether(t *testing.T, request string) {
	conn, answers := f.connect(t)
	if _, err := io.WriteString(conn, strings.Repeat(request, 3)); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		receive(t, i, answers)
	}
}

// receive reads a whole answer.
func receive(t *testing.T, i int, answers *bufio.Reader) *http.Response {
	t.Helper()
	response, err := http.ReadResponse(answers, nil)
	if err != nil {
		t.Fatalf("answer %d: %v", i, err)
	}
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		t.Fatalf("body of answer %d: %v", i, err)
	}
	if response.StatusCode != http.StatusNotFound && response.StatusCode != http.StatusOK {
		t.Fatalf("answer %d: %s", i, response.Status)
	}
	return response
}
