package process

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// TestMain makes the test binary the program that processes run. The first argument is the command.
func TestMain(m *testing.M) {
	if os.Getenv("PROCESS_TEST_CHILD") == "" {
		os.Exit(m.Run())
	}
	switch os.Args[1] {
	case "exit":
		fmt.Println("leaving")
		os.Exit(3)
	case "wait":
		terminate := make(chan os.Signal, 1)
		signal.Notify(terminate, syscall.SIGTERM)
		fmt.Println("waiting")
		<-terminate
		os.Exit(0)
	case "stubborn":
		signal.Ignore(syscall.SIGTERM)
		fmt.Println("waiting")
		<-time.After(time.Hour)
	case "parent":
		child, err := NewSpawner().Start(command(os.Args[2], "stubborn"))
		fmt.Println(child.ID(), err)
		<-time.After(time.Hour)
	}
}

func command(log string, args ...string) Command {
	return Command{
		Executable: "/proc/self/exe", Name: "quorate", Args: args, LogFile: log,
		Environment: []string{"PROCESS_TEST_CHILD=1"}, Directory: filepath.Dir(log),
	}
}

func start(t *testing.T, args ...string) (*Process, string) {
	t.Helper()
	spawner := NewSpawner()
	t.Cleanup(spawner.Close)
	log := filepath.Join(t.TempDir(), "logs", "child.log")
	os.Mkdir(filepath.Dir(log), 0o700)
	p, err := spawner.Start(command(log, args...))
	if err != nil {
		t.Fatal(err)
	}
	return p, log
}

// await returns the log once it contains text.
func await(t *testing.T, file, text string) string {
	t.Helper()
	var content []byte
	until(t, fmt.Sprintf("%q in %s", text, file), func() bool {
		content, _ = os.ReadFile(file)
		return strings.Contains(string(content), text)
	})
	return string(content)
}

// until waits for a condition.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, 20*time.Second, true, func(
		context.Context,
	) (bool, error) {
		return holds(), nil
	})
	if err != nil {
		t.Fatalf("wait for %s: %v", what, err)
	}
}

func TestExitCodeAndLog(t *testing.T) {
	p, log := start(t, "exit")
	<-p.Done()
	if exit, ended := p.Exit(); !ended || exit.Code != 3 || exit.Signal != 0 || exit.At.Before(p.Started()) {
		t.Errorf("got %+v, %t", exit, ended)
	}
	await(t, log, "leaving")
}

func TestStopGracefully(t *testing.T) {
	p, log := start(t, "wait")
	await(t, log, "waiting")
	p.Stop(time.Minute)
	if exit, _ := p.Exit(); exit.Code != 0 {
		t.Errorf("got %+v", exit)
	}
}

func TestStopKillsAfterGrace(t *testing.T) {
	p, log := start(t, "stubborn")
	await(t, log, "waiting")
	p.Stop(10 * time.Millisecond)
	if exit, _ := p.Exit(); exit.Code != 137 || exit.Signal != 9 {
		t.Errorf("got %+v", exit)
	}
}

func TestChildIsKilledWithItsParent(t *testing.T) {
	directory := t.TempDir()
	log := filepath.Join(directory, "child.log")
	parent := exec.Command("/proc/self/exe", "parent", log)
	parent.Env = []string{"PROCESS_TEST_CHILD=1"}
	output, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	var child int
	if _, err := fmt.Fscanf(output, "%d <nil>\n", &child); err != nil {
		t.Fatal(err)
	}
	await(t, log, "waiting")
	parent.Process.Kill()
	parent.Wait()
	t.Cleanup(func() {
		if alive(child) {
			_ = syscall.Kill(child, syscall.SIGKILL)
		}
	})
	until(t, "the child to end with its parent", func() bool { return !alive(child) })
}

// alive reports whether a process runs and is not a zombie.
func alive(id int) bool {
	content, err := os.ReadFile("/proc/" + strconv.Itoa(id) + "/stat")
	if err != nil {
		return false
	}
	_, state, _ := strings.Cut(string(content), ") ")
	return !strings.HasPrefix(state, "Z")
}

// TestTail checks the excerpt of a log in termination messages and in errors.
func TestTail(t *testing.T) {
	for name, test := range map[string]struct{ log, want string }{
		"empty":                            {"", ""},
		"one line":                         {"panic\n", "panic"},
		"as long as the limit":             {"0123456\nabcdefg\n", "0123456\nabcdefg"},
		"longer, without the partial line": {"started\n012345\nabcdefg", "012345\nabcdefg"},
		"longer, with space at its end":    {"first line\n0123456\nabc\n\n\n", "0123456\nabc"},
		"a last line above the limit":      {"started\npanic: 0123456789abcdef\n", "123456789abcdef"},
		"only one line, above the limit":   {"panic: 0123456789abcdef", "0123456789abcdef"},
	} {
		file := filepath.Join(t.TempDir(), "log")
		if err := os.WriteFile(file, []byte(test.log), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := Tail(file, 16); got != test.want {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
	if got := Tail(filepath.Join(t.TempDir(), "missing"), 16); got != "" {
		t.Errorf("without a log: got %q", got)
	}
	if got := Tail(t.TempDir(), 16); got != "" {
		t.Errorf("a directory: got %q", got)
	}
}

func TestBackoff(t *testing.T) {
	var b Backoff
	for i, want := range []time.Duration{0, 1, 2, 4, 8, 16, 30, 30} {
		if got := b.Next(time.Millisecond); got != want*time.Second {
			t.Errorf("end %d: %s, want %ds", i, got, want)
		}
	}
	if got := b.Next(time.Hour); got != 0 {
		t.Errorf("after a long run: %s", got)
	}
	if got := b.Next(0); got != time.Second {
		t.Errorf("after a long and a short run: %s", got)
	}
}
