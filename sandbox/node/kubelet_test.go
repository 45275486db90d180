package node

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// logs requests a Pod's log from the API server.
func (w *testAgent) logs(name string, options corev1.PodLogOptions) string {
	stream, err := w.client.CoreV1().Pods("default").GetLogs(name, &options).Stream(w.Context())
	if err != nil {
		return err.Error()
	}
	defer stream.Close()
	content, err := io.ReadAll(stream)
	if err != nil {
		return err.Error()
	}
	return string(content)
}

// TestLogs requests the output of a Pod's process from the API server.
func TestLogs(t *testing.T) {
	w := start(t)
	w.createDependencies()
	w.create(server("one"))
	pod := w.awaitReady("one")
	say := func(text string) { w.get(pod, "/say?text="+text) }
	say("first")
	say("time=2020-01-01T00:00:00Z+old")
	say("second")
	for _, c := range []struct {
		options corev1.PodLogOptions
		want    string
	}{
		{corev1.PodLogOptions{}, "first\ntime=2020-01-01T00:00:00Z old\nsecond\n"},
		{corev1.PodLogOptions{TailLines: ptr.To[int64](1)}, "second\n"},
		{corev1.PodLogOptions{LimitBytes: ptr.To[int64](4)}, "firs"},
		{corev1.PodLogOptions{SinceSeconds: ptr.To[int64](60)}, "first\n"},
		{
			corev1.PodLogOptions{TailLines: ptr.To[int64](2), Timestamps: true},
			"2020-01-01T00:00:00Z time=2020-01-01T00:00:00Z old\n2020-01-01T00:00:00Z second\n",
		},
		{corev1.PodLogOptions{Previous: true}, `previous terminated container "server" in pod "one" not found`},
	} {
		if got := w.logs("one", c.options); got != c.want {
			t.Errorf("%+v: got %q, want %q", c.options, got, c.want)
		}
	}

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // fail if a line is missing
	defer cancel()
	stream, err := w.client.CoreV1().Pods("default").GetLogs("one",
		&corev1.PodLogOptions{Follow: true, TailLines: ptr.To[int64](0)}).Stream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	lines := bufio.NewScanner(stream)
	say("third")
	if !lines.Scan() || lines.Text() != "third" {
		t.Errorf("followed log: got %q", lines.Text())
	}
	if err := w.client.CoreV1().Pods("default").Delete(t.Context(), "one", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if lines.Scan() {
		t.Errorf("followed log: got %q after its end", lines.Text())
	}
	if err := lines.Err(); err != nil {
		t.Errorf("the followed log did not end: %v", err)
	}
}

// TestOnlyTheAPIServerIsAuthorized sends requests with the certificates of the API server and of another client.
func TestOnlyTheAPIServerIsAuthorized(t *testing.T) {
	for name, want := range map[string]int{"admin": http.StatusForbidden, "server": http.StatusNotFound} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{{Subject: pkix.Name{CommonName: name}}}}
		w := httptest.NewRecorder()
		requireCommonName("server", http.NotFoundHandler()).ServeHTTP(w, r)
		if w.Code != want {
			t.Errorf("%s: got %d, want %d", name, w.Code, want)
		}
	}
}

// TestConnectionsAreBounded opens many connections that send nothing, as another user of the machine can. The kubelet
// API accepts a bounded number of them.
func TestConnectionsAreBounded(t *testing.T) {
	listener := &counting{
		Listener: httptest.NewUnstartedServer(nil).Listener, accepted: make(chan struct{}, 10*maxConnections),
	}
	noCertificate := func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return nil, errors.New("none") }
	agent := &Agent{options: Options{Kubelet: Kubelet{TLS: &tls.Config{GetCertificate: noCertificate}}}}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- agent.serveKubelet(ctx, listener) }()
	var connections []net.Conn
	for range 2 * maxConnections {
		connection, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer connection.Close()
		connections = append(connections, connection)
	}
	for range maxConnections {
		<-listener.accepted
	}
	connections[0].Close() // another one is accepted in its place
	<-listener.accepted
	if more := len(listener.accepted); more > 0 {
		t.Errorf("accepted %d connections more than %d", more, maxConnections)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// counting counts the accepted connections.
type counting struct {
	net.Listener
	accepted chan struct{}
}

func (c *counting) Accept() (net.Conn, error) {
	connection, err := c.Listener.Accept()
	if err == nil {
		c.accepted <- struct{}{}
	}
	return connection, err
}
