package compatibility

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"quorate.dev/test/upstream"
)

// TestProcess starts Quorate with flags about the process itself. It checks that the server notifies systemd, serves
// block profiles on a Unix socket, exports hidden metrics but no disabled ones, and logs requests as --vmodule says.
func TestProcess(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	directory := t.TempDir()
	sockets, err := os.MkdirTemp("", "process") // the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(sockets) })
	systemd, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(sockets, "systemd"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { systemd.Close() })
	pki, err := upstream.NewPKI(filepath.Join(directory, "pki"))
	if err != nil {
		t.Fatal(err)
	}
	debug := filepath.Join(sockets, "debug")
	t.Setenv("NOTIFY_SOCKET", systemd.LocalAddr().String())
	process, err := upstream.StartQuorate(t.Context(), upstream.Options{
		Directory: directory, PKI: pki, Arguments: []string{
			"--debug-socket-path=" + debug, "--contention-profiling", "--vmodule=httplog=3",
			"--show-hidden-metrics-for-version=1.36",
			"--disabled-metrics=apiserver_request_duration_seconds,etcd_requests_total",
			"--allow-metric-labels=apiserver_request_total,resource=configmaps",
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	process.StopAfter(t)
	message := make([]byte, 100)
	if err := systemd.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if n, err := systemd.Read(message); err != nil || string(message[:n]) != "READY=1" {
		t.Errorf("systemd has received %q: %v", message[:n], err)
	}
	s := newServer(t, "quorate", process.Admin)
	s.get(t, "/api/v1/configmaps")
	s.get(t, "/api/v1/secrets")
	_, body := s.answer(t, "/metrics", "text/plain")
	metrics, series := string(body), `apiserver_request_total{code="200",component="apiserver",dry_run="",`
	for want, present := range map[string]bool{
		"\napiserver_storage_objects{": true, "\napiserver_cache_list_total{": true,
		"\napiserver_request_duration_seconds": false, "\netcd_requests_total": false, "\ndisabled_metrics_total 2\n": true,
		series + `group="",resource="configmaps",scope="cluster"`: true,
		series + `group="",resource="secrets",scope="cluster"`:    false,
		series + `group="",resource="unexpected",scope="cluster"`: true,
	} {
		if strings.Contains(metrics, want) != present {
			t.Errorf("/metrics contains %q: %t", want, !present)
		}
	}
	if log, err := os.ReadFile(process.Log); err != nil || !strings.Contains(string(log), "URI=/api/v1/secrets") {
		t.Errorf("the log has no line of a request: %v", err)
	}
	if profile := readSocket(t, debug, "/debug/pprof/block?debug=1"); strings.Count(profile, "\n") < 10 {
		t.Errorf("the profile of blocking events:\n%s", profile)
	}
}

// readSocket requests a path from a server on a Unix socket.
func readSocket(t *testing.T, socket, path string) string {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DialContext: func(
		ctx context.Context, _, _ string,
	) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	defer client.CloseIdleConnections()
	response, err := client.Get("http://localhost" + path)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s %v", path, response.Status, err)
	}
	return string(body)
}
