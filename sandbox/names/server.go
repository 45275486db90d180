package names

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/go-logr/logr"
	"github.com/miekg/dns"
	"golang.org/x/net/netutil"

	"quorate.dev/sandbox/endpoints"
)

// Port is the port of the DNS server, above 1023 so that it needs no privileges.
const Port = 1053

// forwardTimeout is the time after which a query to a DNS server of the machine fails.
const forwardTimeout = 2 * time.Second

// Server is a DNS server for UDP and TCP. It forwards queries for names outside of the cluster to the machine's DNS
// servers.
type Server struct {
	table    *endpoints.Table
	upstream []string // DNS servers of the machine as host:port
	log      logr.Logger
	servers  []*dns.Server
}

// Listen returns a server that listens on an address.
func Listen(address netip.AddrPort, table *endpoints.Table, log logr.Logger) (*Server, error) {
	s := &Server{table: table, upstream: upstream("/etc/resolv.conf", address.Addr()), log: log}
	packets, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(address))
	if err != nil {
		return nil, fmt.Errorf("listen for DNS: %w", err)
	}
	streams, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(packets.LocalAddr().(*net.UDPAddr).AddrPort()))
	if err != nil {
		packets.Close()
		return nil, fmt.Errorf("listen for DNS: %w", err)
	}
	s.servers = []*dns.Server{{PacketConn: packets, Handler: s}, {Listener: streams, Handler: s}}
	return s, nil
}

// Address returns the address of the server as host:port.
func (s *Server) Address() string { return s.servers[0].PacketConn.LocalAddr().String() }

// maxConnections bounds the TCP connections of the server. Other users of the machine can connect, and could otherwise
// use all file descriptors of the process. Further connections wait.
const maxConnections = 64

// Run serves queries until ctx is done.
func (s *Server) Run(ctx context.Context) error {
	ended := make(chan error, len(s.servers))
	for _, server := range s.servers {
		if server.Listener != nil {
			server.Listener = netutil.LimitListener(server.Listener, maxConnections)
		}
		go func() { ended <- server.ActivateAndServe() }()
	}
	var failure error
	select {
	case <-ctx.Done():
	case failure = <-ended:
	}
	s.servers[0].PacketConn.Close()
	s.servers[1].Listener.Close()
	if errors.Is(failure, net.ErrClosed) {
		return nil
	}
	return failure
}

// ServeDNS implements dns.Handler.
func (s *Server) ServeDNS(w dns.ResponseWriter, request *dns.Msg) {
	_, packet := w.LocalAddr().(*net.UDPAddr)
	response := s.respond(request, packet)
	if err := w.WriteMsg(response); err != nil {
		s.log.V(1).Info("Failed to send a DNS response", "err", err)
	}
}

func (s *Server) respond(request *dns.Msg, packet bool) *dns.Msg {
	response := new(dns.Msg)
	if len(request.Question) != 1 {
		return response.SetRcode(request, dns.RcodeFormatError)
	}
	question := request.Question[0]
	answer := Resolve(s.table, question.Name)
	if !answer.Ours {
		return s.forward(request, packet)
	}
	response.SetReply(request)
	response.Authoritative = true
	response.RecursionAvailable = true
	if !answer.Exists {
		response.Rcode = dns.RcodeNameError
	}
	if question.Qtype == dns.TypeA {
		for _, address := range answer.Addresses {
			header := dns.RR_Header{Name: question.Name, Rrtype: dns.TypeA, Class: dns.ClassINET}
			response.Answer = append(response.Answer, &dns.A{Hdr: header, A: address.AsSlice()})
		}
	}
	if packet {
		response.Truncate(size(request))
	}
	return response
}

// size returns the maximum size, in bytes, of a UDP response to a request.
func size(request *dns.Msg) int {
	if options := request.IsEdns0(); options != nil {
		return max(int(options.UDPSize()), dns.MinMsgSize)
	}
	return dns.MinMsgSize
}

func (s *Server) forward(request *dns.Msg, packet bool) *dns.Msg {
	client := dns.Client{Timeout: forwardTimeout}
	if !packet {
		client.Net = "tcp"
	}
	for _, server := range s.upstream {
		if response, _, err := client.Exchange(request, server); err == nil {
			return response
		}
	}
	return new(dns.Msg).SetRcode(request, dns.RcodeServerFailure)
}

// upstream returns the DNS servers in a resolv.conf, except the sandbox's own. There may be none.
func upstream(file string, self netip.Addr) []string {
	config, err := dns.ClientConfigFromFile(file)
	if err != nil {
		return nil
	}
	var result []string
	for _, server := range config.Servers {
		if server != self.String() {
			result = append(result, net.JoinHostPort(server, config.Port))
		}
	}
	return result
}
