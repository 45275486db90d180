package apiserver

import (
	"net"
	"os"
	"strconv"

	utilnet "k8s.io/apimachinery/pkg/util/net"

	"quorate.dev/apiserver/config"
	"quorate.dev/apiserver/controllers/bootstrap"
)

// serverID returns the ID of this replica, which is also its name in metrics, or "" if the host has no name.
func serverID() string {
	hostname, err := os.Hostname()
	if err != nil {
		return ""
	}
	return bootstrap.IdentityOf(hostname)
}

// advertised returns the address at which other parts of the cluster reach this server: --advertise-address or, by
// default, --bind-address. If that is unspecified or a loopback address, it returns the address of the host's default
// interface.
func advertised(c config.Serving) net.IP {
	if ip := net.ParseIP(c.AdvertiseAddress); ip != nil && !ip.IsUnspecified() {
		return ip
	}
	bound := net.ParseIP(c.BindAddress)
	if ip, err := utilnet.ResolveBindAddress(bound); err == nil {
		return ip
	}
	if bound != nil && !bound.IsUnspecified() {
		return bound
	}
	return net.IPv4(127, 0, 0, 1)
}

// address returns the address (host:port) at which clients reach this server.
func address(c config.Serving) string {
	host := c.ExternalHostname
	if host == "" {
		host = advertised(c).String()
	}
	return net.JoinHostPort(host, strconv.Itoa(c.Port))
}

// ownHosts returns the host names and addresses of this machine.
func ownHosts(c config.Serving) []string {
	names := []string{advertised(c).String(), "localhost", "127.0.0.1"}
	if name, err := os.Hostname(); err == nil {
		names = append(names, name)
	}
	if ip := net.ParseIP(c.BindAddress); ip != nil && !ip.IsUnspecified() {
		names = append(names, ip.String())
	}
	return names
}
