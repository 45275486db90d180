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

// TestProcessGetsOnlyWhatItsCommandStates reads the attributes of a running process from the kernel: its arguments,
// environment, directory and process group. Ctrl-C in the terminal does not reach the group.
func TestProcessGetsOnlyWhatItsCommandStates(t *testing.T) {
	t.Setenv("INHERITED", "1")
	p, log := start(t, "wait")
	await(t, log, "waiting")
	for name, want := range map[string]string{
		"cmdline": "quorate\x00wait\x00",
		"environ": "PROCESS_TEST_CHILD=1\x00",
	} {
		got, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", p.ID(), name))
		if err != nil || string(got) != want {
			t.Errorf("%s: got %q, error %v, want %q", name, got, err, want)
		}
	}
	if got, err := os.Readlink(fmt.Sprintf("/proc/%d/cwd", p.ID())); err != nil || got != filepath.Dir(log) {
		t.Errorf("the working directory is %q, error %v, want %q", got, err, filepath.Dir(log))
	}
	if group, err := syscall.Getpgid(p.ID()); err != nil || group != p.ID() {
		t.Errorf("process %d is in the process group %d, error %v", p.ID(), group, err)
	}
}

// TestProcessWithoutEnvironment checks that a command without variables inherits none either.
func TestProcessWithoutEnvironment(t *testing.T) {
	t.Setenv("INHERITED", "1")
	executable, err := exec.LookPath("env")
	if err != nil {
		t.Fatal(err)
	}
	spawner := NewSpawner()
	defer spawner.Close()
	log := filepath.Join(t.TempDir(), "env.log")
	p, err := spawner.Start(Command{Executable: executable, Name: "env", LogFile: log, Directory: filepath.Dir(log)})
	if err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	if exit, _ := p.Exit(); exit.Code != 0 {
		t.Fatalf("got %+v", exit)
	}
	if printed, err := os.ReadFile(log); err != nil || len(printed) > 0 {
		t.Errorf("the process has the variables %q, error %v", printed, err)
	}
}

// TestStartFailures checks the errors of commands that cannot start, and that the Spawner starts others afterwards.
func TestStartFailures(t *testing.T) {
	spawner := NewSpawner()
	defer spawner.Close()
	directory := t.TempDir()
	file := filepath.Join(directory, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	valid := command(filepath.Join(directory, "child.log"), "exit")
	for name, test := range map[string]struct {
		change func(*Command)
		want   string
	}{
		"a log below a file": {
			func(c *Command) { c.LogFile = filepath.Join(file, "child.log") }, "open the log: mkdir",
		},
		"a log that is a directory": {func(c *Command) { c.LogFile = directory }, "open the log: open"},
		"no executable": {
			func(c *Command) { c.Executable = filepath.Join(directory, "missing") }, "start quorate: fork/exec",
		},
		"no working directory": {
			func(c *Command) { c.Directory = filepath.Join(directory, "missing") }, "start quorate: fork/exec",
		},
	} {
		changed := valid
		test.change(&changed)
		if _, err := spawner.Start(changed); err == nil || !strings.HasPrefix(err.Error(), test.want) {
			t.Errorf("%s: got the error %v, want %q", name, err, test.want)
		}
	}
	p, err := spawner.Start(valid)
	if err != nil {
		t.Fatalf("after failures: %v", err)
	}
	<-p.Done()
}

// TestLogIsRotatedAboveLimit starts a process with logs of several sizes. The previous output is in the log, or in
// LOG.old if the log exceeded logLimit.
func TestLogIsRotatedAboveLimit(t *testing.T) {
	executable, err := exec.LookPath("echo")
	if err != nil {
		t.Fatal(err)
	}
	spawner := NewSpawner()
	defer spawner.Close()
	for _, test := range []struct {
		size    int64
		rotated bool
	}{{0, false}, {logLimit, false}, {logLimit + 1, true}} {
		log := filepath.Join(t.TempDir(), "child.log")
		if err := os.WriteFile(log, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(log, test.size); err != nil { // sparse, so that the test writes no 16 MiB
			t.Fatal(err)
		}
		p, err := spawner.Start(Command{
			Executable: executable, Name: "echo", Args: []string{"leaving"}, LogFile: log, Directory: filepath.Dir(log),
		})
		if err != nil {
			t.Fatal(err)
		}
		<-p.Done()
		want := int64(len("leaving\n"))
		if old, err := os.Stat(log + ".old"); (err == nil) != test.rotated || err == nil && old.Size() != test.size {
			t.Errorf("%d bytes: got the rotated log %+v, error %v, want one: %t", test.size, old, err, test.rotated)
		}
		if !test.rotated {
			want += test.size
		}
		if info, err := os.Stat(log); err != nil || info.Size() != want {
			t.Errorf("%d bytes: got the log %+v, error %v, want %d bytes", test.size, info, err, want)
		}
	}
}

// TestCloseKillsProcesses checks that no process outlives the Spawner, not even a process that ignores SIGTERM.
func TestCloseKillsProcesses(t *testing.T) {
	spawner := NewSpawner()
	log := filepath.Join(t.TempDir(), "child.log")
	p, err := spawner.Start(command(log, "stubborn"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	await(t, log, "waiting")
	if exit, ended := p.Exit(); ended {
		t.Fatalf("the process has exited before: %+v", exit)
	}
	spawner.Close()
	until(t, "the process to end with the Spawner", func() bool {
		_, ended := p.Exit()
		return ended
	})
	if exit, _ := p.Exit(); exit.Signal != int(syscall.SIGKILL) {
		t.Errorf("got %+v, want a process that SIGKILL has ended", exit)
	}
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
