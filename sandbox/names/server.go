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

	"quorate.dev/sandbox/endpoints"
)

// Port is above 1023, so that no privilege is needed; it is the only listener on its address.
const Port = 1053

// forwardTimeout bounds one question to one of the machine's DNS servers.
const forwardTimeout = 2 * time.Second

// Server is a DNS server on one address, over UDP and TCP. Names outside of the cluster's domain are passed on
// to the machine's servers.
type Server struct {
	table    *endpoints.Table
	upstream []string // host:port
	log      logr.Logger
	servers  []*dns.Server
}

// Listen starts a server. Its address is occupied when Listen returns without an error.
func Listen(address netip.AddrPort, table *endpoints.Table, log logr.Logger) (*Server, error) {
	s := &Server{table: table, upstream: upstream("/etc/resolv.conf", address.Addr()), log: log}
	packets, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(address))
	if err != nil {
		return nil, fmt.Errorf("listening for DNS: %w", err)
	}
	streams, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(packets.LocalAddr().(*net.UDPAddr).AddrPort()))
	if err != nil {
		packets.Close()
		return nil, fmt.Errorf("listening for DNS: %w", err)
	}
	s.servers = []*dns.Server{{PacketConn: packets, Handler: s}, {Listener: streams, Handler: s}}
	return s, nil
}

// Address is where the server listens, as host:port.
func (s *Server) Address() string { return s.servers[0].PacketConn.LocalAddr().String() }

// Run answers until ctx is done.
func (s *Server) Run(ctx context.Context) error {
	ended := make(chan error, len(s.servers))
	for _, server := range s.servers {
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
		s.log.V(1).Info("a DNS response was not sent", "err", err)
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

// size is the largest response that fits a packet to who asked.
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

// upstream reads the machine's DNS servers. A machine without any has none to ask, which is no error.
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
