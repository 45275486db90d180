// Package proxy implements the addresses of Services, in place of kube-proxy: it listens on each cluster IP and
// forwards connections to ready Pods.
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

const (
	// maxConnections bounds the open connections of all Services. Each has two file descriptors. Other users of the
	// machine can connect, and could otherwise use all file descriptors of the process, with which the node starts pods.
	maxConnections = 2048
	// acceptRetry is the delay after an error of a listener, such as a lack of file descriptors.
	acceptRetry = 100 * time.Millisecond
)

// dialTimeout bounds one attempt to connect to a Pod, which takes microseconds on loopback.
const dialTimeout = time.Second

// Route maps the address of a Service to the addresses of Pods.
type Route struct {
	Listen   netip.AddrPort
	Backends []netip.AddrPort
}

// Routes returns the routes of all Services: one for each TCP port of a cluster IP, and one for each node port.
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

// Proxy forwards the connections of routes. It has one listener for each route.
type Proxy struct {
	log logr.Logger
	// open has an element for each open connection.
	open chan struct{}

	mu        sync.Mutex
	listeners map[netip.AddrPort]*listener
	refused   map[netip.AddrPort]bool // addresses whose error is already logged
	running   sync.WaitGroup
}

// New returns a proxy without routes.
func New(log logr.Logger) *Proxy {
	return &Proxy{
		log: log, open: make(chan struct{}, maxConnections), listeners: map[netip.AddrPort]*listener{},
		refused: map[netip.AddrPort]bool{},
	}
}

// Run keeps the routes up to date with the table, after the static ones, until ctx is done. Then it closes all
// listeners and connections.
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

// Update replaces the routes. If several routes have the same address, the first is used. Connections stay open when
// their route changes or ends; they are closed when ctx is done.
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
		l = &listener{socket: socket, open: p.open, log: p.log.WithValues("service", route.Listen.String())}
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

// Address returns the address on which the proxy listens for the address of a Service. The port differs if it is
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

// PrivilegedOffset is added to ports on which the process is not permitted to listen: 443 becomes 10443.
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
	open     chan struct{} // Proxy.open, which counts the open connections of all listeners
	backends atomic.Pointer[[]netip.AddrPort]
	next     atomic.Uint32
	log      logr.Logger
}

// accept accepts connections until the listener is closed. It closes connections above maxConnections immediately.
func (l *listener) accept(ctx context.Context) {
	var connections sync.WaitGroup
	defer connections.Wait()
	for {
		client, err := l.socket.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			l.log.V(1).Info("Failed to accept a connection; retrying", "err", err)
			pause(ctx, acceptRetry)
			continue
		}
		select {
		case l.open <- struct{}{}:
			connections.Go(func() {
				defer func() { <-l.open }()
				l.forward(ctx, client)
			})
		default:
			l.log.V(1).Info("Closed a connection, because too many are open", "maximum", cap(l.open))
			client.Close()
		}
	}
}

// pause waits for a time, or until ctx ends.
func pause(ctx context.Context, duration time.Duration) {
	timer := time.NewTimer(duration)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
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

// dial connects to a Pod. It tries all Pods once, each time beginning with the next one.
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

// transfer copies one direction of a connection, and forwards the end of the stream.
func transfer(to, from net.Conn) {
	_, err := io.Copy(to, from)
	if err != nil {
		to.Close()
		from.Close()
		return
	}
	to.(*net.TCPConn).CloseWrite()
}
