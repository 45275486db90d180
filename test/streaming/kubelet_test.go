package streaming

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"

	"quorate.dev/test/upstream"
)

// kubelet is a fake kubelet: it serves the API that API servers call, over TLS with client certificates, with the
// streaming library of the real one. Its containers are this machine: commands run here, ports are those of 127.0.0.1.
type kubelet struct {
	server *httptest.Server
	port   int
	// more continues a followed log.
	more chan struct{}
	// ended receives the requests whose clients have disconnected.
	ended chan string
}

func startKubelet(t *testing.T, pki string) *kubelet {
	k := &kubelet{more: make(chan struct{}), ended: make(chan string, 100)}
	certificate, err := tls.LoadX509KeyPair(filepath.Join(pki, "serving.crt"), filepath.Join(pki, "serving.key"))
	if err != nil {
		t.Fatal(err)
	}
	clients, err := os.ReadFile(filepath.Join(pki, "client-ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(clients)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", k.containerLogs)
	mux.HandleFunc("/exec/{namespace}/{pod}/{container}", k.exec)
	mux.HandleFunc("/attach/{namespace}/{pod}/{container}", k.attach)
	mux.HandleFunc("/portForward/{namespace}/{pod}", k.forward)
	mux.Handle("/", web())
	k.server = httptest.NewUnstartedServer(mux)
	_ = k.server.Listener.Close()
	if k.server.Listener, err = net.Listen("tcp", ":0"); err != nil { // at 127.0.0.1, and where proxies may go
		t.Fatal(err)
	}
	k.server.TLS = &tls.Config{
		Certificates: []tls.Certificate{certificate}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert,
	}
	k.server.StartTLS()
	t.Cleanup(k.server.CloseClientConnections)
	k.port = k.server.Listener.Addr().(*net.TCPAddr).Port
	return k
}

// containerLogs selects the response by the container's name.
func (k *kubelet) containerLogs(w http.ResponseWriter, r *http.Request) {
	switch container := r.PathValue("container"); container {
	case "follow":
		fmt.Fprintln(w, "first")
		_ = http.NewResponseController(w).Flush()
		select {
		case <-k.more:
			fmt.Fprintln(w, "second")
			_ = http.NewResponseController(w).Flush()
		case <-r.Context().Done():
		}
		<-r.Context().Done()
		k.ended <- "log"
	case "broken":
		http.Error(w, "the runtime is broken", http.StatusInternalServerError)
	case "waiting":
		http.Error(w, "container is waiting to start", http.StatusBadRequest)
	case "elsewhere":
		http.Redirect(w, r, "https://127.0.0.1/", http.StatusFound)
	case "gone":
		http.Error(w, "no such container", http.StatusNotFound)
	case "busy":
		http.Error(w, "come back later", http.StatusTooManyRequests)
	default:
		// The response echoes the request, so that all options are compared.
		fmt.Fprintf(w, "%s %s %s\n", r.PathValue("pod"), container, r.URL.Query().Encode())
		_ = http.NewResponseController(w).Flush() // upstream's WebSocket reader loses what comes together with the end
	}
}

const (
	idle     = time.Minute
	creation = 10 * time.Second
)

func (k *kubelet) exec(w http.ResponseWriter, r *http.Request) {
	options, err := remotecommand.NewOptions(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	remotecommand.ServeExec(w, r, k, r.PathValue("pod"), "", r.PathValue("container"), r.URL.Query()["command"], options,
		idle, creation, remotecommand.SupportedStreamingProtocols)
}

func (k *kubelet) attach(w http.ResponseWriter, r *http.Request) {
	options, err := remotecommand.NewOptions(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	remotecommand.ServeAttach(w, r, k, r.PathValue("pod"), "", r.PathValue("container"), options, idle, creation,
		remotecommand.SupportedStreamingProtocols)
}

func (k *kubelet) forward(w http.ResponseWriter, r *http.Request) {
	options, err := portforward.NewV4Options(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	portforward.ServePortForward(w, r, k, r.PathValue("pod"), "", options, idle, creation, portforward.SupportedProtocols)
}

// ExecInContainer runs a command. "wait" ends when the client disconnects, "size" prints the sizes of its terminal.
func (k *kubelet) ExecInContainer(
	ctx context.Context, _, _, _ string, command []string, in io.Reader, out, stderr io.WriteCloser, _ bool,
	resize <-chan remotecommand.TerminalSize, _ time.Duration,
) error {
	switch command[0] {
	case "wait":
		fmt.Fprintln(out, "waiting")
		_, _ = io.Copy(io.Discard, in)
		k.ended <- "exec"
		return nil
	case "die":
		fmt.Fprintln(out, "dying")
		<-k.more
		k.server.CloseClientConnections()
		return nil
	case "size":
		size := <-resize
		fmt.Fprintf(out, "%dx%d\n", size.Width, size.Height)
		return nil
	}
	c := exec.CommandContext(ctx, command[0], command[1:]...)
	if command[0] == "/quorate" { // as in the image
		binary, err := upstream.Quorate(ctx)
		if err != nil {
			return err
		}
		c = exec.CommandContext(ctx, binary, command[1:]...)
		c.Env = append(os.Environ(), "POD_IP="+podAddress)
		c.WaitDelay = 100 * time.Millisecond // the end of the process ends the stream, also while the client sends nothing
	}
	c.Stdin, c.Stdout = in, out
	if stderr != nil {
		c.Stderr = stderr
	}
	err := c.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return utilexec.CodeExitError{Err: err, Code: exit.ExitCode()}
	}
	return err
}

// AttachContainer attaches to a process that prints its input twice.
func (k *kubelet) AttachContainer(
	_ context.Context, _, _, _ string, in io.Reader, out, _ io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize,
) error {
	fmt.Fprintln(out, "attached")
	if in == nil {
		return nil
	}
	said, err := io.ReadAll(in)
	fmt.Fprint(out, strings.Repeat(string(said), 2))
	return err
}

// PortForward connects to a port of this machine.
func (k *kubelet) PortForward(ctx context.Context, _, _ string, port int32, stream io.ReadWriteCloser) error {
	defer stream.Close()
	dialer := net.Dialer{}
	conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))))
	if err != nil {
		return err
	}
	defer conn.Close()
	done := make(chan struct{}, 2)
	for _, pair := range [][2]io.ReadWriter{{conn, stream}, {stream, conn}} {
		go func() {
			_, _ = io.Copy(pair[0], pair[1])
			done <- struct{}{}
		}()
	}
	<-done
	return nil
}
