package names

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/sandbox/endpoints"
)

func table() *endpoints.Table {
	service := func(name, clusterIP string, publish bool) *corev1.Service {
		return &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name},
			Spec: corev1.ServiceSpec{
				ClusterIP: clusterIP, PublishNotReadyAddresses: publish, Selector: map[string]string{"app": "demo"},
			},
		}
	}
	pod := func(name, address string, ready corev1.ConditionStatus) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, Labels: map[string]string{"app": "demo"}},
			Spec:       corev1.PodSpec{Hostname: name, Subdomain: "peers"},
			Status: corev1.PodStatus{
				PodIP: address, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}},
			},
		}
	}
	t := endpoints.NewTable()
	t.Update(
		[]*corev1.Service{
			service("demo", "127.9.128.4", false), service("peers", "None", true), service("ready", "None", false),
		},
		[]*corev1.Pod{pod("demo-0", "127.9.64.1", corev1.ConditionTrue), pod("demo-1", "127.9.64.2", corev1.ConditionFalse)},
	)
	return t
}

func TestResolve(t *testing.T) {
	tests := []struct {
		name      string
		ours      bool
		exists    bool
		addresses []string
	}{
		{"demo.team.svc", true, true, []string{"127.9.128.4"}},
		{"Demo.Team.svc.cluster.local.", true, true, []string{"127.9.128.4"}},
		{"peers.team.svc", true, true, []string{"127.9.64.1", "127.9.64.2"}},
		{"ready.team.svc", true, true, []string{"127.9.64.1"}},
		{"demo-1.peers.team.svc", true, true, []string{"127.9.64.2"}},
		{"demo-1.ready.team.svc", true, false, nil},
		{"demo-9.peers.team.svc.cluster.local", true, false, nil},
		{"demo.other.svc", true, false, nil},
		{"127-9-64-1.team.pod.cluster.local", true, true, []string{"127.9.64.1"}},
		{"what.team.pod", true, false, nil},
		{"demo.team.svc.cluster.local.cluster.local", true, false, nil},
		{"example.org", false, false, nil},
		{"svc", true, false, nil},
		{"", false, false, nil},
	}
	known := table()
	for _, test := range tests {
		answer := Resolve(known, test.name)
		var got []string
		for _, address := range answer.Addresses {
			got = append(got, address.String())
		}
		if answer.Ours != test.ours || answer.Exists != test.exists || !slices.Equal(got, test.addresses) {
			t.Errorf("%q: got %+v, want ours %t, exists %t, %v", test.name, answer, test.ours, test.exists, test.addresses)
		}
	}
}

func TestServerOverBothTransports(t *testing.T) {
	server, err := Listen(netip.MustParseAddrPort("127.0.53.53:0"), table(), logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	for _, network := range []string{"udp", "tcp"} {
		resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var dialer net.Dialer
			return dialer.DialContext(ctx, network, server.Address())
		}}
		got, err := resolver.LookupHost(ctx, "peers.team.svc")
		slices.Sort(got)
		if err != nil || !slices.Equal(got, []string{"127.9.64.1", "127.9.64.2"}) {
			t.Errorf("%s: got %v, %v", network, got, err)
		}
		if _, err := resolver.LookupHost(ctx, "missing.team.svc.cluster.local"); err == nil {
			t.Errorf("%s: a missing name was resolved", network)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("stopping: %v", err)
	}
}

// TestConnectionsAreBounded opens many TCP connections that send nothing, as another user of the machine can. The
// server accepts a bounded number of them at the same time, and still answers queries over UDP.
func TestConnectionsAreBounded(t *testing.T) {
	s, err := Listen(netip.MustParseAddrPort("127.0.0.1:0"), table(), logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	listener := &counting{Listener: s.servers[1].Listener}
	s.servers[1].Listener = listener
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	for range 2 * maxConnections {
		connection, err := net.Dial("tcp", s.Address())
		if err != nil {
			t.Fatal(err)
		}
		defer connection.Close()
	}
	query := new(dns.Msg).SetQuestion("demo.team.svc.", dns.TypeA)
	if answer, err := dns.Exchange(query, s.Address()); err != nil || len(answer.Answer) != 1 {
		t.Errorf("got %v, %v", answer, err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	listener.mu.Lock()
	defer listener.mu.Unlock()
	if listener.most > maxConnections {
		t.Errorf("accepted %d connections, at most %d are permitted", listener.most, maxConnections)
	}
}

// counting records how many accepted connections were open at the same time.
type counting struct {
	net.Listener
	mu         sync.Mutex
	open, most int
}

func (c *counting) Accept() (net.Conn, error) {
	connection, err := c.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open++
	c.most = max(c.most, c.open)
	return &counted{Conn: connection, closed: sync.OnceFunc(c.closed)}, nil
}

func (c *counting) closed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open--
}

type counted struct {
	net.Conn
	closed func()
}

func (c *counted) Close() error {
	c.closed()
	return c.Conn.Close()
}
