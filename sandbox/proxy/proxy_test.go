package proxy

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"quorate.dev/sandbox/endpoints"
)

func TestRoutes(t *testing.T) {
	service := func(clusterIP string, ports ...corev1.ServicePort) *corev1.Service {
		return &corev1.Service{Spec: corev1.ServiceSpec{ClusterIP: clusterIP, Ports: ports}}
	}
	pod := func(address string, ready bool) endpoints.Endpoint {
		return endpoints.Endpoint{
			Address: netip.MustParseAddr(address), Ready: ready, Ports: []endpoints.Port{{Port: 443, Target: 6443}},
		}
	}
	https, dns := corev1.ServicePort{Port: 443}, corev1.ServicePort{Port: 53, Protocol: corev1.ProtocolUDP}
	entries := []endpoints.Entry{
		{
			Service: service("127.9.128.1", https, dns), Endpoints: []endpoints.Endpoint{
				pod("127.9.64.1", true), pod("127.9.64.2", false),
			},
		},
		{Service: service("None", https), Endpoints: []endpoints.Endpoint{pod("127.9.64.1", true)}},
		{Service: service("", https)},
		{Service: service("127.9.128.2", corev1.ServicePort{Port: 80, NodePort: 30080})},
	}
	want := []Route{
		{
			Listen: netip.MustParseAddrPort("127.9.128.1:443"), Backends: []netip.AddrPort{
				netip.MustParseAddrPort("127.9.64.1:6443"),
			},
		},
		{Listen: netip.MustParseAddrPort("127.9.128.2:80")},
		{Listen: netip.MustParseAddrPort("127.9.0.2:30080")},
	}
	equal := cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })
	if diff := cmp.Diff(want, Routes(entries, netip.MustParseAddr("127.9.0.2")), equal); diff != "" {
		t.Error(diff)
	}
}

// echo listens and returns its name, followed by its input.
func echo(t *testing.T, name string) netip.AddrPort {
	socket, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { socket.Close() })
	go func() {
		for {
			connection, err := socket.Accept()
			if err != nil {
				return
			}
			io.WriteString(connection, name)
			io.Copy(connection, connection)
			connection.Close()
		}
	}()
	return socket.Addr().(*net.TCPAddr).AddrPort()
}

func ask(t *testing.T, address netip.AddrPort) (string, error) {
	t.Helper()
	connection, err := net.Dial("tcp4", address.String())
	if err != nil {
		return "", err
	}
	defer connection.Close()
	io.WriteString(connection, "!")
	connection.(*net.TCPConn).CloseWrite()
	answer, err := io.ReadAll(connection)
	return string(answer), err
}

func TestProxyForwardsToReachablePods(t *testing.T) {
	dead := netip.MustParseAddrPort("127.0.0.1:1")
	listen := free(t)
	p := New(logr.Discard())
	ctx, cancel := context.WithCancel(t.Context())
	p.Update(ctx, []Route{{Listen: listen, Backends: []netip.AddrPort{dead, echo(t, "one")}}})
	for range 4 {
		if got, err := ask(t, listen); got != "one!" {
			t.Fatalf("got %q, %v", got, err)
		}
	}
	p.Update(ctx, []Route{{Listen: listen, Backends: []netip.AddrPort{echo(t, "two")}}})
	if got, err := ask(t, listen); got != "two!" {
		t.Errorf("after the change: %q, %v", got, err)
	}
	p.Update(ctx, []Route{{Listen: listen}})
	if got, err := ask(t, listen); err == nil {
		t.Errorf("without Pods: %q", got)
	}
	cancel()
	p.Update(ctx, nil)
	p.running.Wait()
	if _, err := ask(t, listen); err == nil {
		t.Error("the address of a removed route accepts connections")
	}
}

func TestProxyEndsConnectionsWithItsContext(t *testing.T) {
	listen := free(t)
	p := New(logr.Discard())
	ctx, cancel := context.WithCancel(t.Context())
	p.Update(ctx, []Route{{Listen: listen, Backends: []netip.AddrPort{echo(t, "x")}}})
	connection, err := net.Dial("tcp4", listen.String())
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	if _, err := io.ReadFull(connection, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := connection.Read(make([]byte, 1)); err == nil || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the connection outlived the proxy: %v", err)
	}
	p.Update(ctx, nil)
	p.running.Wait()
}

// free returns an address without a listener.
func free(t *testing.T) netip.AddrPort {
	socket, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	return socket.Addr().(*net.TCPAddr).AddrPort()
}

// failing is a listener whose first Accept fails, as without file descriptors.
type failing struct {
	net.Listener
	failed bool
}

// Accept implements net.Listener.
func (f *failing) Accept() (net.Conn, error) {
	if !f.failed {
		f.failed = true
		return nil, syscall.EMFILE
	}
	return f.Listener.Accept()
}

// TestListenerOutlivesErrors also opens more connections than are permitted: the proxy closes the second, and accepts a
// third once the first has ended.
func TestListenerOutlivesErrors(t *testing.T) {
	socket, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &listener{socket: &failing{Listener: socket}, open: make(chan struct{}, 1), log: logr.Discard()}
	l.backends.Store(&[]netip.AddrPort{echo(t, "pod")})
	var running sync.WaitGroup
	running.Go(func() { l.accept(t.Context()) })
	defer running.Wait()
	defer socket.Close()
	connect := func() (net.Conn, error) {
		connection, err := net.Dial("tcp4", socket.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.ReadFull(connection, make([]byte, len("pod")))
		return connection, err
	}
	first, err := connect()
	if err != nil {
		t.Fatalf("after an error of the listener: %v", err)
	}
	second, err := connect()
	second.Close()
	if err == nil {
		t.Error("accepted a connection above the limit")
	}
	first.Close()
	for { // until the proxy has noticed the end of the first
		third, err := connect()
		third.Close()
		if err == nil {
			break
		}
	}
}
