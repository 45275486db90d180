package serving

import (
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// userTimeout is the maximum time for which sent data may stay unacknowledged, or unread because the peer's window is
// full. A connection that exceeds it is closed, and the handlers that write to it return.
const userTimeout = time.Minute

// setUserTimeout sets TCP_USER_TIMEOUT. Connections that lack this option, such as multipath TCP, are left unchanged.
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
