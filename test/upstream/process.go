package upstream

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

const (
	stopTimeout = 30 * time.Second
	tailLines   = 60
)

// errPortTaken is returned if another process has taken a port since freePorts returned it.
var errPortTaken = errors.New("port was taken")

// Process is a running program that logs to a file.
type Process struct {
	Name    string
	PID     int
	Log     string // path of the log file
	Started time.Time

	command *exec.Cmd
	ended   chan struct{}
	err     error // set before ended is closed
}

// Run starts a binary with additional environment variables. It does not wait until the process is ready. The process
// ends with the calling process at the latest. Its output is appended to directory/NAME.log.
func Run(name, binary, directory string, environment, arguments []string) (*Process, error) {
	return launch(name, binary, directory, append(os.Environ(), environment...), arguments)
}

// start starts a binary like Run, without additional environment variables.
func start(name, binary, directory string, arguments []string) (*Process, error) {
	return launch(name, binary, directory, nil, arguments)
}

func launch(name, binary, directory string, environment, arguments []string) (*Process, error) {
	log := filepath.Join(directory, name+".log")
	file, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	command := exec.Command(binary, arguments...)
	command.Dir, command.Env = directory, environment
	command.Stdout, command.Stderr = file, file
	command.SysProcAttr = endWithParent()
	p := &Process{Name: name, Log: log, Started: time.Now(), command: command, ended: make(chan struct{})}
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	p.PID = command.Process.Pid
	go p.wait()
	return p, nil
}

func (p *Process) wait() {
	p.err = p.command.Wait()
	close(p.ended)
}

// Ended returns a channel that is closed when the process has exited.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// ExitCode returns the exit code of a process that has ended, or -1 if a signal has ended it.
func (p *Process) ExitCode() int { return p.command.ProcessState.ExitCode() }

// Stop sends SIGTERM and waits until the process has exited. It returns an error if the exit code is not 0, or if the
// process was killed after a timeout.
func (p *Process) Stop() error {
	_ = p.command.Process.Signal(syscall.SIGTERM) // the process may have exited
	select {
	case <-p.ended:
	case <-time.After(stopTimeout):
		p.Kill()
		return fmt.Errorf("%s did not end within %v", p.Name, stopTimeout)
	}
	if p.err != nil && !endedBy(p.err, syscall.SIGTERM) {
		return fmt.Errorf("%s: %w", p.Name, p.err)
	}
	return nil
}

// Kill sends SIGKILL and waits until the process has exited.
func (p *Process) Kill() {
	_ = p.command.Process.Kill()
	<-p.ended
}

// endedBy reports whether a signal has ended a process. etcd handles the signal and then raises it again.
func endedBy(err error, signal syscall.Signal) bool {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return false
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == signal
}

// Tail returns the end of the log.
func (p *Process) Tail() string {
	content, err := os.ReadFile(p.Log)
	if err != nil {
		return err.Error()
	}
	lines := bytes.Split(bytes.TrimSpace(content), []byte("\n"))
	return string(bytes.Join(lines[max(0, len(lines)-tailLines):], []byte("\n")))
}

// StopAfter stops the process at the end of the test, and prints the end of its log if the test has failed.
func (p *Process) StopAfter(t testing.TB) {
	t.Cleanup(func() {
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("the end of the log of %s:\n%s", p.Name, p.Tail())
		}
	})
}

// failure returns the reason for which a process exited before it was ready.
func (p *Process) failure() error {
	tail := p.Tail()
	if bytes.Contains([]byte(tail), []byte("address already in use")) {
		return fmt.Errorf("%s: %w", p.Name, errPortTaken)
	}
	return errors.Join(fmt.Errorf("%s exited before it was ready:\n%s", p.Name, tail), p.err)
}

// freePorts returns unused ports of 127.0.0.1.
func freePorts(count int) ([]int, error) {
	var ports []int
	for range count {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer listener.Close() // all ports stay open until the last is known, so that they differ
		ports = append(ports, listener.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}
