package sandbox

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"

	"quorate.dev/apiserver"
	"quorate.dev/operator"
	"quorate.dev/sandbox/progress"
	"quorate.dev/sandbox/resolver"
	"quorate.dev/test/upstream"
)

// TestMain makes the test binary the program that a sandbox runs: the first argument is the command.
func TestMain(m *testing.M) {
	commands := map[string]func(context.Context, []string) error{"apiserver": apiserver.Run, "operator": operator.Run}
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		os.Exit(m.Run())
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM) //nolint:forbidigo // a process
	defer stop()
	resolver.FromEnvironment()
	if err := commands[os.Args[1]](ctx, os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1) //nolint:gocritic // stop only restores signals
	}
}

// running is a sandbox that runs in this process.
type running struct {
	*testing.T
	home   *home
	out    io.Reader
	events *json.Decoder // of out
	ended  <-chan error
	cancel context.CancelFunc
}

// runSandbox opens a directory and runs the sandbox in it.
func runSandbox(t *testing.T, s settings) *running {
	t.Helper()
	upstream.NeedsProcesses(t)
	h, err := openHome(s.directory)
	if err != nil {
		t.Fatal(err)
	}
	out, in := io.Pipe()
	box, err := newSandbox(s, h, progress.New(in, progress.JSON))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		err := box.run(ctx)
		h.close()
		in.Close()
		ended <- err
	}()
	return &running{T: t, home: h, events: json.NewDecoder(out), out: out, ended: ended, cancel: cancel}
}

// stop stops the sandbox, and returns its error.
func (r *running) stop() error {
	r.cancel()
	return r.end()
}

// end waits until the sandbox ends, and returns its error.
func (r *running) end() error {
	_, _ = io.Copy(io.Discard, r.out) // a sandbox waits until its events are read
	return <-r.ended
}

// await returns the next event of a type.
func (r *running) await(kind string) progress.Event {
	r.Helper()
	for {
		var event progress.Event
		if err := r.events.Decode(&event); err != nil {
			r.Fatalf("no event %s: %v", kind, err)
		}
		if event.Event == kind {
			return event
		}
	}
}

// command runs `quorate sandbox` and returns its output.
func (r *running) command(args ...string) string {
	r.Helper()
	var out strings.Builder
	command := newCommand()
	command.SetOut(&out)
	command.SetArgs(append(args, "--dir="+r.home.shown))
	if err := command.ExecuteContext(r.Context()); err != nil {
		r.Errorf("sandbox %s: %v", strings.Join(args, " "), err)
	}
	return out.String()
}

// TestSandbox starts a sandbox with a cluster of one replica, uses it from a second terminal, and stops it. The second
// start continues with the cluster. test/endtoend uses sandboxes with several replicas.
func TestSandbox(t *testing.T) {
	s := settings{directory: filepath.Join(t.TempDir(), "box"), replicas: 1, json: true}
	r := runSandbox(t, s)
	ready := r.await("ready")
	if ready.Clusters["demo"] != filepath.Join(s.directory, "demo.kubeconfig") ||
		!strings.Contains(ready.Message, "kubectl quorate status") {
		t.Errorf("got the event %+v", ready)
	}
	config, err := clientcmd.BuildConfigFromFlags("", ready.Clusters["demo"])
	if err != nil {
		t.Fatal(err)
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Resource(rbacResource("clusterroles")).List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("the API of demo: %v", err)
	}
	if got := r.command("status", "--output=json"); got != "" { // the plugin writes to the terminal
		t.Errorf("status with a format has a heading: %s", got)
	}
	if got := r.command("logs", "management", "--tail=5"); got == "" {
		t.Error("the management API server has no log")
	}
	if got := r.command("env"); !strings.Contains(got, "demo.kubeconfig") {
		t.Errorf("the environment is %s", got)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.home.pageURL(), nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("the status page: %v, %v", response, err)
	}
	response.Body.Close()
	if _, err := openHome(s.directory); err == nil || !strings.Contains(err.Error(), "running") {
		t.Errorf("a second sandbox in the directory: %v", err)
	}
	if err := r.stop(); err != nil {
		t.Fatalf("the sandbox ended with %v", err)
	}

	s.replicasSet = true
	again := runSandbox(t, s)
	if ready := again.await("ready"); ready.Message != "" || ready.Clusters["demo"] == "" {
		t.Errorf("the second start: %+v", ready)
	}
	if err := again.stop(); err != nil {
		t.Fatalf("the second run ended with %v", err)
	}
	if err := remove(s.directory); err != nil {
		t.Error(err)
	}
}

// TestAddressInUse starts a sandbox while another program listens on the address of its status page.
func TestAddressInUse(t *testing.T) {
	s := settings{directory: filepath.Join(t.TempDir(), "box"), empty: true, json: true}
	h, err := openHome(s.directory)
	if err != nil {
		t.Fatal(err)
	}
	h.close()
	listener, err := net.Listen("tcp4", strings.TrimPrefix(h.pageURL(), "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	r := runSandbox(t, s)
	if err := r.end(); err == nil || !strings.Contains(err.Error(), "status page") {
		t.Errorf("the sandbox ended with %v", err)
	}
}
