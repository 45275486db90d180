// Package proxy implements Service addresses, in place of kube-proxy: it listens on each cluster IP and forwards
// connections to ready Pods.
package proxy

import (
	"cmp"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"

	"quorate.dev/sandbox/endpoints"
)

// dialTimeout limits one connection attempt to a Pod; on loopback it takes microseconds.
const dialTimeout = time.Second

// Route maps a Service address to the addresses of Pods.
type Route struct {
	Listen   netip.AddrPort
	Backends []netip.AddrPort
}

// Routes returns the routes of a table: one per TCP port of every Service with a cluster IP, and one per node port.
func Routes(entries []endpoints.Entry, node netip.Addr) []Route {
	var routes []Route
	for _, entry := range entries {
		address, ok := entry.ClusterIP()
		if !ok {
			continue
		}
		for _, port := range entry.Service.Spec.Ports {
			if cmp.Or(port.Protocol, corev1.ProtocolTCP) != corev1.ProtocolTCP {
				continue
			}
			pods := backends(entry, port.Port)
			routes = append(routes, Route{Listen: netip.AddrPortFrom(address, uint16(port.Port)), Backends: pods})
			if port.NodePort != 0 {
				routes = append(routes, Route{Listen: netip.AddrPortFrom(node, uint16(port.NodePort)), Backends: pods})
			}
		}
	}
	return routes
}

func backends(entry endpoints.Entry, servicePort int32) []netip.AddrPort {
	var result []netip.AddrPort
	for _, endpoint := range entry.Endpoints {
		for _, port := range endpoint.Ports {
			if endpoint.Ready && port.Port == servicePort {
				result = append(result, netip.AddrPortFrom(endpoint.Address, uint16(port.Target)))
			}
		}
	}
	return result
}

// Proxy has a listener per route.
type Proxy struct {
	log logr.Logger

	mu        sync.Mutex
	listeners map[netip.AddrPort]*listener
	refused   map[netip.AddrPort]bool // already logged
	running   sync.WaitGroup
}

// New returns a proxy without routes.
func New(log logr.Logger) *Proxy {
	return &Proxy{log: log, listeners: map[netip.AddrPort]*listener{}, refused: map[netip.AddrPort]bool{}}
}

// Run updates the routes from the table until ctx is done, and then closes listeners and connections.
func (p *Proxy) Run(ctx context.Context, table *endpoints.Table, node netip.Addr, static []Route) {
	changed := table.Subscribe()
	for ctx.Err() == nil {
		p.Update(ctx, slices.Concat(static, Routes(table.Entries(), node)))
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
	p.Update(ctx, nil)
	p.running.Wait()
}

// Update replaces the routes. If two routes have the same address, the first is used. Changing the Pods of a route
// keeps its open connections, which are closed when ctx is done.
func (p *Proxy) Update(ctx context.Context, routes []Route) {
	p.mu.Lock()
	defer p.mu.Unlock()
	wanted := map[netip.AddrPort]bool{}
	for _, route := range routes {
		if !wanted[route.Listen] {
			wanted[route.Listen] = true
			p.apply(ctx, route)
		}
	}
	for address, l := range p.listeners {
		if !wanted[address] {
			l.socket.Close()
			delete(p.listeners, address)
		}
	}
}

func (p *Proxy) apply(ctx context.Context, route Route) {
	l, ok := p.listeners[route.Listen]
	if !ok {
		socket, err := listen(route.Listen)
		if err != nil {
			p.refuse(route.Listen, err)
			return
		}
		l = &listener{socket: socket, log: p.log.WithValues("service", route.Listen.String())}
		p.listeners[route.Listen] = l
		delete(p.refused, route.Listen)
		p.running.Go(func() { l.accept(ctx) })
	}
	l.backends.Store(&route.Backends)
}

func (p *Proxy) refuse(address netip.AddrPort, err error) {
	if !p.refused[address] {
		p.refused[address] = true
		p.log.Error(err, "Failed to listen on a Service address", "service", address.String())
	}
}

// Address returns the address on which the proxy listens for a Service address. It is different if the port is
// privileged.
func (p *Proxy) Address(service netip.AddrPort) (netip.AddrPort, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l, ok := p.listeners[service]
	if !ok {
		return netip.AddrPort{}, false
	}
	return l.socket.Addr().(*net.TCPAddr).AddrPort(), true
}

// PrivilegedOffset is added to ports that require privileges: 443 becomes 10443.
const PrivilegedOffset = 10000

func listen(address netip.AddrPort) (net.Listener, error) {
	socket, err := net.Listen("tcp4", address.String())
	if errors.Is(err, syscall.EACCES) {
		return net.Listen("tcp4", netip.AddrPortFrom(address.Addr(), address.Port()+PrivilegedOffset).String())
	}
	return socket, err
}

type listener struct {
	socket   net.Listener
	backends atomic.Pointer[[]netip.AddrPort]
	next     atomic.Uint32
	log      logr.Logger
}

func (l *listener) accept(ctx context.Context) {
	var connections sync.WaitGroup
	defer connections.Wait()
	for {
		client, err := l.socket.Accept()
		if err != nil {
			return // the listener is closed
		}
		connections.Go(func() { l.forward(ctx, client) })
	}
}

func (l *listener) forward(ctx context.Context, client net.Conn) {
	defer client.Close()
	server := l.dial(ctx)
	if server == nil {
		client.(*net.TCPConn).SetLinger(0) // reset the connection, like a port without a listener
		return
	}
	defer server.Close()
	stop := context.AfterFunc(ctx, func() { client.Close(); server.Close() })
	defer stop()
	var copying sync.WaitGroup
	copying.Go(func() { transfer(server, client) })
	copying.Go(func() { transfer(client, server) })
	copying.Wait()
}

// dial tries every Pod once, round-robin.
func (l *listener) dial(ctx context.Context) net.Conn {
	backends := *l.backends.Load()
	dialer := net.Dialer{Timeout: dialTimeout}
	turn := int(l.next.Add(1))
	for i := range backends {
		backend := backends[(turn+i)%len(backends)]
		server, err := dialer.DialContext(ctx, "tcp4", backend.String())
		if err == nil {
			return server
		}
		l.log.V(1).Info("Failed to connect to a Pod", "pod", backend.String(), "err", err)
	}
	return nil
}

// transfer copies one direction and forwards its end of file.
func transfer(to, from net.Conn) {
	_, err := io.Copy(to, from)
	if err != nil {
		to.Close()
		from.Close()
		return
	}
	to.(*net.TCPConn).CloseWrite()
}
