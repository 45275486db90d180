package serving

import (
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// userTimeout bounds how long sent data may stay unacknowledged or unread by the peer. A connection that exceeds it is
// closed, and the handlers that write to it return.
const userTimeout = time.Minute

// setUserTimeout sets TCP_USER_TIMEOUT. Connections without this option, such as multipath TCP, are left unchanged.
func setUserTimeout(accepted net.Conn) {
	socket, ok := accepted.(syscall.Conn)
	if !ok {
		return
	}
	conn, err := socket.SyscallConn()
	if err != nil {
		return
	}
	_ = conn.Control(func(descriptor uintptr) {
		_ = unix.SetsockoptInt(int(descriptor), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(userTimeout.Milliseconds()))
	})
}
