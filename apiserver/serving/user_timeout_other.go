//go:build !linux

package serving

import "net"

// setUserTimeout has no effect on systems without TCP_USER_TIMEOUT.
func setUserTimeout(net.Conn) {}
