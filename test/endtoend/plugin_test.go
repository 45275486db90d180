package endtoend

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"

	"quorate.dev/plugin/overview"
	"quorate.dev/test/browser"
)

// quorate runs `kubectl quorate` like a terminal with the variables of `quorate sandbox env`, and returns its output.
func (s *sandbox) quorate(args ...string) string {
	s.t.Helper()
	output, code := s.quorateCode(args...)
	if code != 0 {
		s.t.Fatalf("kubectl quorate %s: exit code %d", strings.Join(args, " "), code)
	}
	return output
}

// quorateCode also returns the exit code.
func (s *sandbox) quorateCode(args ...string) (string, int) {
	s.t.Helper()
	const script = `eval "$("$QUORATE" sandbox env --dir "$DIRECTORY" 2>/dev/null)"; exec kubectl quorate "$@"`
	command := exec.CommandContext(s.t.Context(), "/bin/sh", append([]string{"-c", script, "sh"}, args...)...)
	command.Env = append(os.Environ(), "QUORATE="+filepath.Join(s.directory, "bin", "quorate"), "DIRECTORY="+s.directory,
		"PATH="+filepath.Dir(s.kubectl)+":"+os.Getenv("PATH"))
	var out, progress bytes.Buffer
	command.Stdout, command.Stderr = &out, &progress
	err := command.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		s.t.Fatal(err)
	}
	s.t.Logf("kubectl quorate %s: %s", strings.Join(args, " "), progress.String())
	return out.String(), command.ProcessState.ExitCode()
}

// inspect runs each command that reads the state of demo.
func (s *sandbox) inspect() {
	s.t.Helper()
	for args, want := range map[string]string{
		"status": "3/3 ready", "status -A": "default    demo  Healthy", "logs demo --tail=3": "[demo-",
		"wait demo --timeout=60s": "", "top demo --interval=200ms -o yaml": "requestsPerSecond: ",
		"kubeconfig demo": "current-context: default-demo",
	} {
		if got := s.quorate(strings.Fields(args)...); !strings.Contains(got, want) {
			s.t.Errorf("kubectl quorate %s printed no %q:\n%s", args, want, got)
		}
	}
	var o overview.Overview
	check(s.t, json.Unmarshal([]byte(s.quorate("status", "demo", "-o", "json")), &o))
	if o.Health != overview.Healthy || len(o.Replicas) != 3 || len(o.Notes) > 0 || len(o.Certificates) < 10 ||
		o.Backups.Completed == nil {
		s.t.Errorf("the status is %+v", o)
	}
	for _, r := range o.Replicas {
		if !r.Ready || r.Usage == nil || r.Usage.Revision == 0 || r.Usage.Memory == 0 {
			s.t.Errorf("the state of %s is %+v", r.Name, r)
		}
	}
	if output, code := s.quorateCode("status", "none"); code != 1 {
		s.t.Errorf("the status of a missing cluster has exit code %d: %s", code, output)
	}
	if output, code := s.quorateCode("wait", "demo", "--for=recovered", "--timeout=10ms"); code != 3 {
		s.t.Errorf("a timeout has exit code %d: %s", code, output)
	}
	file := filepath.Join(s.t.TempDir(), "config")
	check(s.t, os.WriteFile(file, []byte(must(os.ReadFile(s.management))(s.t)), 0o600))
	s.quorate("kubeconfig", "demo", "--write", "--endpoint="+s.demoConfig().Host, "--kubeconfig="+file)
	s.run(file, "--context=default-demo", "get", "namespaces")
	if context := must(clientcmd.LoadFromFile(file))(s.t).CurrentContext; context != "management" {
		s.t.Errorf("the current context is %s", context)
	}
}

// statusPage reads the status page, and writes its screenshot for the documents to the file in $QUORATE_SCREENSHOT.
func (s *sandbox) statusPage() {
	s.t.Helper()
	response := must(http.Get(s.page))(s.t)
	defer response.Body.Close()
	text := string(must(io.ReadAll(response.Body))(s.t))
	for _, want := range []string{"default/demo", "default/copy", "EtcdBootstrapped", "Healthy", "MembersHealthy"} {
		if !strings.Contains(text, want) {
			s.t.Errorf("the status page does not contain %q:\n%s", want, text)
		}
	}
	file := os.Getenv("QUORATE_SCREENSHOT")
	if file == "" {
		return
	}
	s.t.Run("screenshot", func(t *testing.T) {
		tab := browser.Open(t)
		tab.Show(browser.Screen{Width: 960, Height: 860}, s.page)
		tab.Wait("!document.querySelector('main').innerText.includes('Requests/s\\n-')")
		const usualDirectory = `(document.querySelectorAll('.quiet, dd')
			.forEach((e) => { e.innerHTML = e.innerHTML.replaceAll(%q, '.quorate') }), true)`
		tab.Evaluate(fmt.Sprintf(usualDirectory, s.directory), new(bool))
		check(t, os.WriteFile(file, tab.Screenshot(), 0o600))
	})
}
