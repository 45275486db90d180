package streaming

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
)

// executor returns a client-go executor of one protocol.
type executor func(config *rest.Config, url *url.URL) (remotecommand.Executor, error)

// protocols are the streaming protocols of client-go.
var protocols = map[string]executor{
	"SPDY": func(config *rest.Config, url *url.URL) (remotecommand.Executor, error) {
		return remotecommand.NewSPDYExecutor(config, http.MethodPost, url)
	},
	"WebSocket": func(config *rest.Config, url *url.URL) (remotecommand.Executor, error) {
		return remotecommand.NewWebSocketExecutor(config, http.MethodGet, url.String())
	},
	"WebSocket version 4": func(config *rest.Config, url *url.URL) (remotecommand.Executor, error) {
		return remotecommand.NewWebSocketExecutorForProtocols(config, http.MethodGet, url.String(), "v4.channel.k8s.io")
	},
}

func (s *side) execURL(options *corev1.PodExecOptions) *url.URL {
	options.Container = "main"
	return s.client.CoreV1().RESTClient().Post().Resource("pods").Namespace(namespace).Name("pod").SubResource("exec").
		VersionedParams(options, scheme.ParameterCodec).URL()
}

func (b *bench) testCommands(t *testing.T) {
	for protocol, executor := range protocols {
		t.Run(protocol, func(t *testing.T) {
			b.both(t, "out: 3 err:  <nil>", func(t *testing.T, s *side) string {
				return b.stream(t, s, executor,
					&corev1.PodExecOptions{Command: []string{"expr", "1", "+", "2"}, Stdout: true, Stderr: true},
					remotecommand.StreamOptions{})
			})
			b.both(t, "err: oops", func(t *testing.T, s *side) string {
				return b.stream(t, s, executor,
					&corev1.PodExecOptions{Command: []string{"sh", "-c", "echo oops >&2; exit 4"}, Stdout: true, Stderr: true},
					remotecommand.StreamOptions{})
			})
			b.both(t, "80x25", func(t *testing.T, s *side) string {
				return b.stream(t, s, executor, &corev1.PodExecOptions{Command: []string{"size"}, Stdout: true, TTY: true},
					remotecommand.StreamOptions{Tty: true, TerminalSizeQueue: &sizes{{Width: 80, Height: 25}}})
			})
		})
		if protocol == "WebSocket version 4" {
			continue // cannot end its input
		}
		t.Run(protocol+" input", func(t *testing.T) {
			const size = 1 << 20
			b.both(t, strconv.Itoa(size), func(t *testing.T, s *side) string {
				return b.stream(t, s, executor, &corev1.PodExecOptions{Command: []string{"wc", "-c"}, Stdin: true, Stdout: true},
					remotecommand.StreamOptions{Stdin: bytes.NewReader(make([]byte, size))})
			})
		})
	}
}

// sizes are consecutive sizes of a terminal.
type sizes []remotecommand.TerminalSize

func (q *sizes) Next() *remotecommand.TerminalSize {
	if len(*q) == 0 {
		return nil
	}
	next := (*q)[0]
	*q = (*q)[1:]
	return &next
}

func (b *bench) stream(
	t *testing.T, s *side, executor executor, options *corev1.PodExecOptions, streams remotecommand.StreamOptions,
) string {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	e, err := executor(s.admin, s.execURL(options))
	if err != nil {
		t.Fatal(err)
	}
	var out, stderr bytes.Buffer
	streams.Stdout = &out
	if options.Stderr {
		streams.Stderr = &stderr
	}
	err = e.StreamWithContext(ctx, streams)
	return fmt.Sprintf("out: %s err: %s %v", strings.TrimSpace(out.String()), strings.TrimSpace(stderr.String()), err)
}

// testGone checks that the end of either side closes the other.
func (b *bench) testGone(t *testing.T) {
	for protocol, executor := range protocols {
		t.Run(protocol+", the client", func(t *testing.T) {
			for _, s := range []*side{b.kubernetes, b.quorate} {
				ctx, cancel := context.WithCancel(t.Context())
				e, err := executor(s.admin, s.execURL(&corev1.PodExecOptions{Command: []string{"wait"}, Stdin: true, Stdout: true}))
				if err != nil {
					t.Fatal(err)
				}
				input, _ := io.Pipe()
				err = e.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: input, Stdout: onWrite(cancel)})
				if !errors.Is(err, context.Canceled) {
					t.Errorf("%s: %v", s.name, err)
				}
				b.awaitEnd(t, s, "exec")
			}
		})
		t.Run(protocol+", the kubelet", func(t *testing.T) {
			for _, s := range []*side{b.kubernetes, b.quorate} {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				e, err := executor(s.admin, s.execURL(&corev1.PodExecOptions{Command: []string{"die"}, Stdout: true}))
				if err != nil {
					t.Fatal(err)
				}
				_ = e.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: onWrite(func() { b.kubelet.more <- struct{}{} })})
				if ctx.Err() != nil {
					t.Errorf("%s: the client was not told that the kubelet is gone", s.name)
				}
				cancel()
			}
		})
	}
}

// onWrite is called when something is written.
type onWrite func()

func (f onWrite) Write(p []byte) (int, error) {
	f()
	return len(p), nil
}

// testPorts connects to a server in a pod through a local port.
func (b *bench) testPorts(t *testing.T) {
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "reached ", r.URL.Path)
	}))
	defer target.Close()
	port := target.Listener.Addr().(*net.TCPAddr).Port
	for name, tunnelled := range map[string]bool{"SPDY": false, "WebSocket": true} {
		t.Run(name, func(t *testing.T) {
			b.both(t, "reached /a reached /b", func(t *testing.T, s *side) string { return b.forward(t, s, port, tunnelled) })
		})
	}
}

func (b *bench) forward(t *testing.T, s *side, port int, tunnelled bool) string {
	address := s.client.CoreV1().RESTClient().Post().Resource("pods").Namespace(namespace).Name("pod").
		SubResource("portforward").URL()
	var dialer httpstream.Dialer
	if tunnelled {
		var err error
		if dialer, err = portforward.NewSPDYOverWebsocketDialer(address, s.admin); err != nil {
			t.Fatal(err)
		}
	} else {
		transport, upgrader, err := spdy.RoundTripperFor(s.admin)
		if err != nil {
			t.Fatal(err)
		}
		dialer = spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, address)
	}
	stop, ready := make(chan struct{}), make(chan struct{})
	forwarder, err := portforward.New(dialer, []string{fmt.Sprintf("0:%d", port)}, stop, ready, io.Discard, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- forwarder.ForwardPorts() }()
	select {
	case <-ready:
	case err := <-ended:
		t.Fatal(s.name, err)
	}
	ports, err := forwarder.GetPorts()
	if err != nil {
		t.Fatal(err)
	}
	var said []string
	for _, path := range []string{"/a", "/b"} {
		response, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d%s", ports[0].Local, path))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		response.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		said = append(said, string(body))
	}
	close(stop)
	if err := <-ended; err != nil {
		t.Error(s.name, err)
	}
	return strings.Join(said, " ")
}
