// Package resolver makes a process of the sandbox resolve names with the sandbox's DNS server instead of the servers in
// /etc/resolv.conf.
package resolver

import (
	"context"
	"net"
	"os"
)

// Variable is the environment variable with the address of the DNS server as host:port.
const Variable = "QUORATE_RESOLVER"

// Use makes the process resolve all names with the DNS server at address. An empty address changes nothing.
func Use(address string) {
	if address == "" {
		return
	}
	net.DefaultResolver.PreferGo = true
	net.DefaultResolver.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
		var dialer net.Dialer
		return dialer.DialContext(ctx, network, address)
	}
}

// FromEnvironment calls Use with the address in the environment variable Variable.
func FromEnvironment() { Use(os.Getenv(Variable)) }
