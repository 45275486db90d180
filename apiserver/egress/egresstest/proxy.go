// Package egresstest runs egress proxies for tests, with HTTP CONNECT and with the gRPC protocol of konnectivity.
package egresstest

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"
)

// Proxy connects to the addresses that clients request, and records them.
type Proxy struct {
	// Route returns the address to which Proxy connects for the address that a client requests. Tests use names that
	// only Route can resolve, so that a connection that bypasses the proxy fails.
	Route func(address string) string

	mu     sync.Mutex
	dialed map[string]int
}

// Dialed returns the sorted addresses that clients have requested.
func (p *Proxy) Dialed() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Sorted(maps.Keys(p.dialed))
}

func (p *Proxy) dial(address string) (net.Conn, error) {
	p.mu.Lock()
	if p.dialed == nil {
		p.dialed = map[string]int{}
	}
	p.dialed[address]++
	p.mu.Unlock()
	return net.Dial("tcp", p.Route(address))
}

// ServeConnect serves HTTP CONNECT on a listener until the test ends.
func (p *Proxy) ServeConnect(t testing.TB, listener net.Listener) {
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go p.connect(conn)
		}
	}()
	t.Cleanup(func() { listener.Close() })
}

func (p *Proxy) connect(conn net.Conn) {
	defer conn.Close()
	reader := bufio.NewReader(conn)
	r, err := http.ReadRequest(reader)
	if err != nil || r.Method != http.MethodConnect {
		return
	}
	backend, err := p.dial(r.RequestURI)
	if err != nil {
		fmt.Fprint(conn, "HTTP/1.1 502 Bad Gateway\r\n\r\n")
		return
	}
	defer backend.Close()
	fmt.Fprint(conn, "HTTP/1.1 200 Connection established\r\n\r\n")
	go func() {
		_, _ = io.Copy(backend, reader)
		backend.Close()
	}()
	_, _ = io.Copy(conn, backend)
}

// ServeGRPC serves the gRPC protocol of konnectivity on a listener until the test ends.
func (p *Proxy) ServeGRPC(t testing.TB, listener net.Listener) {
	server := grpc.NewServer()
	client.RegisterProxyServiceServer(server, tunnels{proxy: p})
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
}

// tunnels serves gRPC streams with one connection each, as upstream's client requires.
type tunnels struct {
	client.UnimplementedProxyServiceServer
	proxy *Proxy
}

// Proxy implements client.ProxyServiceServer.
func (t tunnels) Proxy(stream client.ProxyService_ProxyServer) error {
	const connection = 1
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	request := first.GetDialRequest()
	response := &client.DialResponse{Random: request.GetRandom(), ConnectID: connection}
	backend, err := t.proxy.dial(request.GetAddress())
	if err != nil {
		response.Error = err.Error()
	}
	err = stream.Send(&client.Packet{
		Type: client.PacketType_DIAL_RSP, Payload: &client.Packet_DialResponse{DialResponse: response},
	})
	if backend == nil || err != nil {
		return err
	}
	defer backend.Close()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		copyTo(stream, backend, connection)
	}()
	for {
		packet, err := stream.Recv()
		if err != nil {
			return nil
		}
		switch packet.GetType() {
		case client.PacketType_DATA:
			_, _ = backend.Write(packet.GetData().GetData())
		case client.PacketType_CLOSE_REQ:
			backend.Close()
			<-ended
			return nil
		}
	}
}

// copyTo sends the data that a backend sends, and then that the backend has closed the connection.
func copyTo(stream client.ProxyService_ProxyServer, backend net.Conn, connection int64) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := backend.Read(buffer)
		if n > 0 {
			_ = stream.Send(&client.Packet{Type: client.PacketType_DATA, Payload: &client.Packet_Data{
				Data: &client.Data{ConnectID: connection, Data: slices.Clone(buffer[:n])},
			}})
		}
		if err != nil {
			_ = stream.Send(&client.Packet{Type: client.PacketType_CLOSE_RSP, Payload: &client.Packet_CloseResponse{
				CloseResponse: &client.CloseResponse{ConnectID: connection},
			}})
			return
		}
	}
}
