package sandbox

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/utils/ptr"

	"quorate.dev/sandbox/logs"
)

// stopped returns the directory of a stopped sandbox, with a quote in its name.
func stopped(t *testing.T) *home {
	t.Helper()
	h, err := openHome(filepath.Join(t.TempDir(), "it's"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.close)
	return h
}

func write(t *testing.T, file, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestEnvIsEvaluatedByAShell checks that the shell gets the kubeconfigs, the hosting cluster's first, and the links.
func TestEnvIsEvaluatedByAShell(t *testing.T) {
	h := stopped(t)
	for _, name := range []string{"copy.kubeconfig", "management.kubeconfig"} {
		write(t, h.file(name), "")
	}
	for range 2 { // the second start finds existing links
		if err := h.linkBinary(); err != nil {
			t.Fatal(err)
		}
	}
	var out, notes bytes.Buffer
	if err := h.printVariables(&out, &notes); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(notes.String(), "is not running; start it with") {
		t.Errorf("notes: %s", notes.String())
	}
	script := out.String() + `echo "$KUBECONFIG"; command -v kubectl-quorate`
	got, err := exec.Command("/bin/sh", "-c", script).CombinedOutput()
	want := h.file("management.kubeconfig") + ":" + h.file("copy.kubeconfig") + "\n" +
		h.file("bin", "kubectl-quorate") + "\n"
	if err != nil || string(got) != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

// TestEnvWithoutKubectl checks that the note says how to build kubectl, until it is built.
func TestEnvWithoutKubectl(t *testing.T) {
	h := stopped(t)
	t.Setenv("PATH", t.TempDir())
	for _, built := range []bool{false, true} {
		if built {
			write(t, h.file("bin", "kubectl"), "")
		}
		var notes bytes.Buffer
		if err := h.printVariables(&bytes.Buffer{}, &notes); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(notes.String(), "go build -o '"+h.file("bin", "kubectl")+"'") == built {
			t.Errorf("kubectl exists: %t; notes: %s", built, notes.String())
		}
	}
}

func TestLogsOfAStoppedSandbox(t *testing.T) {
	h := stopped(t)
	write(t, h.file("logs", "operator.log"), "first\nsecond\n")
	write(t, h.file("logs", "default", "demo-0", "apiserver.log"), "ready\n")
	write(t, h.file("logs", "team-a", "demo-0", "apiserver.log"), "other\n")
	if got := strings.Join(h.logNames(), " "); got != "demo-0 operator team-a/demo-0" {
		t.Errorf("names: %s", got)
	}
	options := logs.Options{Tail: ptr.To[int64](1)}
	for names, want := range map[string]string{
		"operator": "second\n", "pod/demo-0": "ready\n", "team-a/demo-0": "other\n", "demo-0 operator": "[operator] second\n",
	} {
		var out bytes.Buffer
		if err := h.printLogs(t.Context(), &out, strings.Fields(names), options); err != nil ||
			!strings.Contains(out.String(), want) {
			t.Errorf("%s: %q, %v", names, out.String(), err)
		}
	}
	if err := h.printLogs(t.Context(), &bytes.Buffer{}, []string{"none"}, options); err == nil ||
		!strings.Contains(err.Error(), "logs: demo-0, operator") {
		t.Errorf("a missing log: %v", err)
	}
}

func TestErrorsSayWhatToDo(t *testing.T) {
	h := stopped(t)
	none := t.TempDir()
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"env", "--dir", none}, "start one with"}, {[]string{"logs", "--dir", none}, "start one with"},
		{[]string{"status", "--dir", h.path}, "is not running; start it with"}, {
			[]string{"shell", "--dir", h.path}, "is not running; start it with",
		},
		{[]string{"--dir", h.path}, "quorate sandbox shell"},
	} {
		if err := Run(t.Context(), test.args); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%v: %v, want %q", test.args, err, test.want)
		}
	}
}

func TestTryNext(t *testing.T) {
	h := &home{shown: defaultDirectory}
	if got := h.tryNext(false); !strings.Contains(got, "sandbox env)") ||
		!strings.Contains(got, "kubectl quorate status") || strings.Contains(got, "--dir") {
		t.Error(got)
	}
	h.shown = "/tmp/other"
	if got := h.tryNext(true); !strings.Contains(got, "sandbox env --dir /tmp/other)") ||
		strings.Contains(got, "demo namespace") {
		t.Error(got)
	}
}
