package memory

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
)

// hungryVariable marks the process that uses memory.
const hungryVariable = "QUORATE_TEST_HUNGRY"

// TestLimit: a process that needs more memory than its group may use is killed, and one without a limit is not.
func TestLimit(t *testing.T) {
	if os.Getenv(hungryVariable) != "" {
		useMemory(t)
		return
	}
	g, err := NewGroup(fmt.Sprintf("faults-test-%d", os.Getpid()))
	if err != nil {
		t.Skip("no memory groups: ", err)
	}
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	if signal := g.run(t); signal != -1 {
		t.Errorf("without a limit, signal %v ended the process", signal)
	}
	limit, err := g.Limit(32 << 20)
	if err != nil || limit != 32<<20 {
		t.Fatal(limit, err)
	}
	if signal := g.run(t); signal != syscall.SIGKILL {
		t.Errorf("with a limit, signal %v ended the process, want %v", signal, syscall.SIGKILL)
	}
	if err := g.Unlimit(); err != nil {
		t.Fatal(err)
	}
	if signal := g.run(t); signal != -1 {
		t.Errorf("after the limit, signal %v ended the process", signal)
	}
}

// run runs a process that uses memory in the group, and returns the signal that has ended it, or -1.
func (g *Group) run(t *testing.T) syscall.Signal {
	t.Helper()
	process := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestLimit$")
	process.Env = append(os.Environ(), hungryVariable+"=yes")
	input, err := process.StdinPipe()
	if err == nil {
		err = process.Start()
	}
	if err == nil {
		err = g.Add(process.Process.Pid)
	}
	if err == nil {
		err = input.Close() // the process begins
	}
	if err != nil {
		t.Fatal(err)
	}
	_ = process.Wait()
	return process.ProcessState.Sys().(syscall.WaitStatus).Signal()
}

func useMemory(t *testing.T) {
	t.Helper()
	if _, err := os.Stdin.Read(make([]byte, 1)); err == nil {
		t.Fatal("the input has not ended")
	}
	memory := make([]byte, 128<<20)
	for i := 0; i < len(memory); i += os.Getpagesize() {
		memory[i] = 1
	}
}
