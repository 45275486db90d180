package replica

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"quorate.dev/operator/desired"
)

// TestSamplesShareTheirConfiguration reads the metrics of several API servers concurrently and repeatedly with one
// Sampler. The race detector finds clients that write to the shared configuration.
func TestSamplesShareTheirConfiguration(t *testing.T) {
	var pods []*corev1.Pod
	for i := range 3 {
		address := fmt.Sprintf("127.89.%d.1", i)
		listener, err := net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(desired.SecurePort)))
		if err != nil {
			t.Fatal(err)
		}
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintf(w, "process_resident_memory_bytes %d\n", i+1)
		}))
		server.Listener, server.EnableHTTP2 = listener, true
		server.StartTLS()
		t.Cleanup(server.Close)
		pod := &corev1.Pod{}
		pod.Status.PodIP = address
		pods = append(pods, pod)
	}
	s := &Sampler{host: &rest.Config{}, admin: &rest.Config{
		Host: "https://demo.default.svc:6443", TLSClientConfig: rest.TLSClientConfig{Insecure: true},
	}}
	for range 10 {
		var group sync.WaitGroup
		for i, pod := range pods {
			group.Go(func() {
				if sample, err := s.Sample(t.Context(), pod); err != nil || sample.Memory != int64(i+1) {
					t.Errorf("replica %d: %+v, %v", i, sample, err)
				}
			})
		}
		group.Wait()
	}
}

// TestUnresponsive checks, with connections that fail, which errors mean that an API server does not respond.
func TestUnresponsive(t *testing.T) {
	hanging, err := net.Listen("tcp", net.JoinHostPort("127.90.0.1", strconv.Itoa(desired.SecurePort)))
	if err != nil {
		t.Fatal(err)
	}
	defer hanging.Close() // accepts connections in the kernel only
	s := &Sampler{
		host: &rest.Config{}, admin: &rest.Config{
			Host: "https://demo:6443", TLSClientConfig: rest.TLSClientConfig{Insecure: true},
		},
	}
	for address, want := range map[string]string{
		"127.90.0.1": "does not respond within 2s", "127.90.0.2": "refuses connections",
	} {
		pod := &corev1.Pod{}
		pod.Status.PodIP = address
		began := time.Now()
		_, err := s.Sample(t.Context(), pod)
		if got := Unresponsive(err); got != want {
			t.Errorf("%v: got %q, want %q", err, got, want)
		}
		if took := time.Since(began); took > 5*timeout {
			t.Errorf("took %s", took)
		}
	}
	for err, want := range map[error]string{
		nil:                                     "",
		errors.New("forbidden"):                 "",
		context.Canceled:                        "",
		syscall.EHOSTUNREACH:                    "is unreachable",
		fmt.Errorf("x: %w", syscall.ECONNRESET): "closes connections",
		errors.New("command terminated with exit code 1: dial tcp: connect: connection refused"): "refuses connections",
	} {
		if got := Unresponsive(err); got != want {
			t.Errorf("%v: got %q, want %q", err, got, want)
		}
	}
}
