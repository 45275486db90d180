package streaming

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// local matches the local port in the output of kubectl.
var local = regexp.MustCompile(`127\.0\.0\.1:(\d+)`)

// serve runs kubectl until the returned function is called, and returns its local address.
func (b *bench) serve(t *testing.T, s *side, arguments ...string) (address string, stop func()) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	command := exec.CommandContext(ctx, b.kubectl, append([]string{"--kubeconfig=" + s.kubeconfig}, arguments...)...)
	command.Env, command.Stderr = append(os.Environ(), "HOME="+t.TempDir()), os.Stderr
	out, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	stop = func() {
		cancel()
		_ = command.Wait() // it was killed
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if found := local.FindString(lines.Text()); found != "" {
			go func() { _, _ = io.Copy(io.Discard, out) }()
			return "http://" + found, stop
		}
	}
	stop()
	t.Fatalf("%s: kubectl %v has not begun to serve", s.name, arguments)
	return "", nil
}

// fetch returns the status and the body of a response.
func fetch(t *testing.T, url string) string {
	response, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.Status + " " + string(body)
}

func (b *bench) testKubectlPortForward(t *testing.T) {
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "reached ", r.URL.Path)
	}))
	defer target.Close()
	port := target.Listener.Addr().(*net.TCPAddr).Port
	b.both(t, "200 OK reached /a 200 OK reached /b", func(t *testing.T, s *side) string {
		address, stop := b.serve(t, s, "port-forward", "pod/pod", fmt.Sprintf(":%d", port))
		defer stop()
		return fetch(t, address+"/a") + " " + fetch(t, address+"/b")
	})
}

func (b *bench) testKubectlProxy(t *testing.T) {
	b.both(t, `"kind":"Pod"`, func(t *testing.T, s *side) string {
		address, stop := b.serve(t, s, "proxy", "--port=0")
		defer stop()
		said := fetch(t, address+"/api/v1/namespaces/default/pods/pod") +
			fetch(t, address+"/api/v1/namespaces/default/pods/missing") +
			fetch(t, address+"/api/v1/namespaces/default/pods/pod/log?container=main") +
			fetch(t, address+"/api/v1/namespaces/default/pods/pod/exec")
		return strings.ReplaceAll(said, address, "PROXY")
	})
}
