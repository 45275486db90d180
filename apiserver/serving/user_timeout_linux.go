package serving

import (
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// userTimeout bounds how long a peer may leave unacknowledged, or unread, what it was sent. A connection that is over it
// ends, and with it the handlers that write to it.
const userTimeout = time.Minute

// setUserTimeout bounds writes to a connection. What has no such option, such as a connection of multipath TCP, is left as
// it is.
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
