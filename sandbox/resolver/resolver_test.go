package resolver_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/go-logr/logr/testr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/sandbox/endpoints"
	"quorate.dev/sandbox/names"
	"quorate.dev/sandbox/resolver"
)

// many is the number of Pods of the headless Service many, whose addresses do not fit into a UDP response.
const many = 200

// serveNames runs the sandbox's DNS server with two headless Services, demo at 127.0.0.1 and many, and returns its
// address.
func serveNames(t *testing.T) string {
	t.Helper()
	var services []*corev1.Service
	var pods []*corev1.Pod
	add := func(name, address string) {
		pods = append(pods, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "team", Name: fmt.Sprint(name, "-", len(pods)), Labels: map[string]string{"app": name},
			},
			Status: corev1.PodStatus{
				PodIP: address, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
			},
		})
	}
	for _, name := range []string{"demo", "many"} {
		services = append(services, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name},
			Spec:       corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone, Selector: map[string]string{"app": name}},
		})
	}
	add("demo", "127.0.0.1")
	for i := range many {
		add("many", fmt.Sprint("127.9.64.", i+1))
	}
	table := endpoints.NewTable()
	table.Update(services, pods)
	server, err := names.Listen(netip.MustParseAddrPort("127.0.0.1:0"), table, testr.New(t))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return server.Address()
}

// restore restores the resolver of the process at the end of the test.
func restore(t *testing.T) {
	t.Helper()
	preferGo, dial := net.DefaultResolver.PreferGo, net.DefaultResolver.Dial
	t.Cleanup(func() { net.DefaultResolver.PreferGo, net.DefaultResolver.Dial = preferGo, dial })
}

// TestProcessConnectsToServices opens a connection to the name of a Service, as clients in processes of the sandbox do,
// in the process whose environment has the address of the sandbox's DNS server.
func TestProcessConnectsToServices(t *testing.T) {
	restore(t)
	t.Setenv(resolver.Variable, serveNames(t))
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	resolver.FromEnvironment()
	var dialer net.Dialer
	for _, host := range []string{"demo.team.svc", "demo.team.svc.cluster.local", "127-0-0-1.team.pod"} {
		connection, err := dialer.DialContext(t.Context(), "tcp", net.JoinHostPort(host, port))
		if err != nil {
			t.Errorf("connect to %s: %v", host, err)
			continue
		}
		connection.Close()
	}
	// The trailing dot keeps the resolver from appending the search domains of the machine.
	if connection, err := dialer.DialContext(t.Context(), "tcp", net.JoinHostPort("other.team.svc.", port)); err == nil {
		connection.Close()
		t.Error("a Service that does not exist was resolved")
	}
}

// TestLongResponses looks up a name whose addresses do not fit into a UDP response, so that the resolver repeats the
// query over TCP.
func TestLongResponses(t *testing.T) {
	restore(t)
	resolver.Use(serveNames(t))
	addresses, err := net.DefaultResolver.LookupHost(t.Context(), "many.team.svc")
	if err != nil || len(addresses) != many {
		t.Errorf("got %d addresses, want %d; error %v", len(addresses), many, err)
	}
}

// TestWithoutVariable checks that a process outside of a sandbox keeps the DNS servers of the machine.
func TestWithoutVariable(t *testing.T) {
	restore(t)
	t.Setenv(resolver.Variable, "")
	net.DefaultResolver.PreferGo, net.DefaultResolver.Dial = false, nil
	resolver.FromEnvironment()
	if net.DefaultResolver.PreferGo || net.DefaultResolver.Dial != nil {
		t.Error("the resolver of the process was replaced")
	}
}
