// Package resolver points a process of the sandbox at the sandbox's DNS server. It is what a container's
// /etc/resolv.conf would do.
package resolver

import (
	"context"
	"net"
	"os"
)

// Variable is the environment variable with the DNS server's host:port.
const Variable = "QUORATE_RESOLVER"

// Use makes the process ask the DNS server at address for every name. That server passes on what it does not
// know to the machine's own. An empty address changes nothing.
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

// FromEnvironment is Use with the address that the environment variable holds.
func FromEnvironment() { Use(os.Getenv(Variable)) }
