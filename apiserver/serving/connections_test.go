package serving

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"
)

// TestShutdownEndsStreams hijacks a connection, as streams do. It must survive the drain and then be closed.
func TestShutdownEndsStreams(t *testing.T) {
	o := options(t)
	ended := make(chan error, 1)
	o.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, buffer, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\n\r\n")
		_, err = io.Copy(conn, buffer)
		ended <- err
	})
	o.Drain.Requests.Enter()
	s := serve(t, o)
	conn, err := tls.Dial("tcp", s.Addr().String(), &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	from := bufio.NewReader(conn)
	if response, err := http.ReadResponse(from, nil); err != nil || response.StatusCode != http.StatusSwitchingProtocols {
		t.Fatal(response, err)
	}
	stopped := make(chan error, 1)
	go func() { stopped <- s.Shutdown(t.Context(), nil, noWork) }()
	if err := <-s.served; err != nil { // the port is closed: the server drains
		t.Error(err)
	}
	fmt.Fprintln(conn, "still there?")
	if line, err := from.ReadString('\n'); err != nil || line != "still there?\n" {
		t.Errorf("while a request finishes: %q, %v", line, err)
	}
	o.Drain.Requests.Leave()
	if _, err := from.ReadByte(); err == nil {
		t.Error("the stream was not closed")
	}
	<-ended
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}
