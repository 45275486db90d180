package serving

import (
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

type noVerbosity struct{}

func (noVerbosity) SetVerbosity(uint32) {}

func TestDebugSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "debug")
	if err := os.WriteFile(path, nil, 0o600); err != nil { // left by a former process
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- ServeSocket(ctx, path, DebugMux(noVerbosity{})) }()
	client := &http.Client{Transport: &http.Transport{DialContext: func(
		ctx context.Context, _, _ string,
	) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}}
	send := func(method, path string) (int, error) {
		r, err := http.NewRequestWithContext(t.Context(), method, "http://socket"+path, strings.NewReader("3"))
		if err != nil {
			return 0, err
		}
		answer, err := client.Do(r)
		if err != nil {
			return 0, err
		}
		return answer.StatusCode, answer.Body.Close()
	}
	listening := func(context.Context) (bool, error) {
		_, err := send(http.MethodGet, "/debug/flags")
		return err == nil, nil
	}
	if err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, time.Minute, true, listening); err != nil {
		t.Fatal(err)
	}
	for request, want := range map[string]int{
		"GET /debug/pprof/": http.StatusOK, "GET /debug/pprof/goroutine": http.StatusOK, "PUT /debug/flags/v": http.StatusOK,
		"GET /debug/flags/v": http.StatusNotAcceptable, "GET /api": http.StatusNotFound,
	} {
		method, path, _ := strings.Cut(request, " ")
		if got, err := send(method, path); err != nil || got != want {
			t.Errorf("%s: got %d, %v; want %d", request, got, err, want)
		}
	}
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
}
