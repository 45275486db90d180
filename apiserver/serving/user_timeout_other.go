//go:build !linux

package serving

import "net"

// setUserTimeout has no effect where there is no TCP_USER_TIMEOUT.
func setUserTimeout(net.Conn) {}
