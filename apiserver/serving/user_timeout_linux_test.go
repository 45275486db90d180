package serving

import (
	"net"
	"testing"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"quorate.dev/apiserver/config"
)

// TestConnectionsHaveAUserTimeout reads the option of an accepted connection.
func TestConnectionsHaveAUserTimeout(t *testing.T) {
	listener, err := listen(config.Serving{BindAddress: "127.0.0.1"})
	if err != nil {
		t.Fatal(err)
	}
	all := newConnections(listener, capacity{}, logr.Discard(), prometheus.NewRegistry())
	defer all.Close()
	client, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	accepted, err := all.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer accepted.Close()
	conn, err := accepted.(*connection).Conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var timeout int
	if failed := conn.Control(func(descriptor uintptr) {
		timeout, err = unix.GetsockoptInt(int(descriptor), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT)
	}); failed != nil || err != nil {
		t.Fatal(failed, err)
	}
	if want := int(userTimeout.Milliseconds()); timeout != want {
		t.Errorf("the timeout is %d ms, want %d", timeout, want)
	}
}
