package serving

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"quorate.dev/apiserver/config"
)

// listen listens on --bind-address and --secure-port.
func listen(options config.Serving) (net.Listener, error) {
	listening := net.ListenConfig{KeepAlive: 3 * time.Minute}
	if options.PermitPortSharing || options.PermitAddressSharing {
		listening.Control = func(_, _ string, conn syscall.RawConn) error {
			return share(conn, options.PermitPortSharing, options.PermitAddressSharing)
		}
	}
	address := net.JoinHostPort(options.BindAddress, strconv.Itoa(options.Port))
	listener, err := listening.Listen(context.Background(), "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", address, err)
	}
	return listener, nil
}

// share sets SO_REUSEPORT and SO_REUSEADDR on a socket, as port and address require.
func share(conn syscall.RawConn, port, address bool) error {
	var err error
	set := func(descriptor uintptr) {
		if port {
			err = unix.SetsockoptInt(int(descriptor), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
		}
		if address && err == nil {
			err = unix.SetsockoptInt(int(descriptor), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
		}
	}
	if failed := conn.Control(set); failed != nil {
		return failed
	}
	return err
}
