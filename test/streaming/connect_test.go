package streaming

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/operator/desired"
	"quorate.dev/plugin/replica"
)

// podAddress is the address of the API server that `quorate connect` connects to in the pod.
const podAddress = "127.83.41.9"

// testConnect connects to an API server in a pod as kubectl quorate does: through `quorate connect` in the pod.
func (b *bench) testConnect(t *testing.T) {
	listener, err := net.Listen("tcp", fmt.Sprintf("%s:%d", podAddress, desired.SecurePort))
	if err != nil {
		t.Fatal(err)
	}
	target := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "reached ", r.URL.Path, strings.Repeat(".", 1<<17))
	}))
	_ = target.Listener.Close()
	target.Listener = listener
	target.Start()
	defer target.Close()
	b.both(t, "reached /a reached /b", func(t *testing.T, s *side) string {
		return b.connect(t, s, "/a") + " " + b.connect(t, s, "/b")
	})
}

func (b *bench) connect(t *testing.T, s *side, path string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	pod, err := s.client.CoreV1().Pods(namespace).Get(ctx, "pod", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// The machine of the test may have loopback addresses only, which are dialled directly.
	pod.Status.PodIP = "192.0.2.1"
	transport := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return replica.Dial(ctx, s.admin, pod) },
	}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://pod"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return err.Error()
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimRight(string(body), ".")
}
