package replica

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"

	"quorate.dev/operator/desired"
)

// Dial connects to the API server in a pod. It connects directly to pods with loopback addresses, which are pods of a
// sandbox. In other pods it runs `quorate connect`, because API servers listen only on the address of the pod, and port
// forwarding reaches only localhost.
func Dial(ctx context.Context, host *rest.Config, pod *corev1.Pod) (net.Conn, error) {
	if ip, err := netip.ParseAddr(pod.Status.PodIP); err == nil && ip.IsLoopback() {
		var dialer net.Dialer
		return dialer.DialContext(ctx, "tcp", netip.AddrPortFrom(ip, desired.SecurePort).String())
	}
	if pod.Status.Phase != corev1.PodRunning {
		return nil, fmt.Errorf("pod %s is not running: %s", pod.Name, pod.Status.Phase)
	}
	executor, err := executor(host, pod)
	if err != nil {
		return nil, err
	}
	near, far := net.Pipe()
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	t := &tunnel{Conn: near, cancel: cancel, done: make(chan struct{})}
	go func() {
		var messages bytes.Buffer
		t.err = executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: far, Stdout: far, Stderr: &messages})
		if text := strings.TrimSpace(messages.String()); t.err != nil && text != "" {
			t.err = fmt.Errorf("%w: %s", t.err, text)
		}
		close(t.done) // done is closed first, so that the other side finds err when it reads EOF
		far.Close()
	}()
	return t, nil
}

// executor returns an executor that runs `quorate connect` in a pod. It uses a WebSocket, or SPDY if the hosting
// cluster does not support WebSockets.
func executor(host *rest.Config, pod *corev1.Pod) (remotecommand.Executor, error) {
	client, err := kubernetes.NewForConfig(host)
	if err != nil {
		return nil, err
	}
	address := client.CoreV1().RESTClient().Post().
		Resource("pods").Namespace(pod.Namespace).Name(pod.Name).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{
			Container: pod.Spec.Containers[0].Name, Command: []string{"/quorate", "connect"}, Stdin: true,
			Stdout: true, Stderr: true,
		}, scheme.ParameterCodec).URL()
	webSocket, err := remotecommand.NewWebSocketExecutor(host, http.MethodGet, address.String())
	if err != nil {
		return nil, err
	}
	spdy, err := remotecommand.NewSPDYExecutor(host, http.MethodPost, address)
	if err != nil {
		return nil, err
	}
	return remotecommand.NewFallbackExecutor(webSocket, spdy, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
}

// tunnel is a connection through a command that runs in a pod.
type tunnel struct {
	net.Conn
	cancel context.CancelFunc
	done   chan struct{}
	err    error // why the command ended; set before done is closed
}

// Read implements io.Reader. It returns the error of the command instead of the EOF that results from the error.
func (t *tunnel) Read(content []byte) (int, error) {
	n, err := t.Conn.Read(content)
	return n, t.explain(err)
}

func (t *tunnel) Write(content []byte) (int, error) {
	n, err := t.Conn.Write(content)
	return n, t.explain(err)
}

func (t *tunnel) explain(err error) error {
	if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrClosedPipe) {
		return err
	}
	select {
	case <-t.done:
		if t.err != nil {
			return t.err
		}
	default: // this side has closed the connection
	}
	return err
}

func (t *tunnel) Close() error {
	t.cancel()
	return t.Conn.Close()
}

// Connect runs the command `quorate connect`: in a pod of an API server, it connects standard input and output to the
// server.
func Connect(ctx context.Context, args []string) error {
	ip, err := netip.ParseAddr(os.Getenv("POD_IP"))
	if len(args) > 0 || err != nil {
		return errors.New("connect is run by kubectl quorate in pods of API servers, and has no arguments")
	}
	return connect(ctx, netip.AddrPortFrom(ip, desired.SecurePort), os.Stdin, os.Stdout)
}

// connect copies in both directions until the API server closes the connection.
func connect(ctx context.Context, address netip.AddrPort, in io.Reader, out io.Writer) error {
	var dialer net.Dialer
	connection, err := dialer.DialContext(ctx, "tcp", address.String())
	if err != nil {
		return err
	}
	defer connection.Close()
	stop := context.AfterFunc(ctx, func() { connection.Close() })
	defer stop()
	go func() {
		_, _ = io.Copy(connection, in) // the other direction ends after an error, too
		_ = connection.(*net.TCPConn).CloseWrite()
	}()
	_, err = io.Copy(out, connection)
	return err
}
