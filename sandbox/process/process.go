// Package process starts and stops the processes of a sandbox. All processes run this binary, each in a new process
// group, and no process outlives the sandbox.
package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"
)

// Command describes a process to start.
type Command struct {
	Executable  string
	Name        string // argv[0]
	Args        []string
	Environment []string // all variables as name=value; nothing is inherited
	Directory   string   // working directory
	LogFile     string   // stdout and stderr are appended to it
}

// Spawner starts processes from one locked OS thread. A process is killed when the thread that started it exits, and
// the Go runtime may end unlocked threads at any time.
type Spawner struct {
	requests chan request
}

type request struct {
	command *exec.Cmd
	result  chan error
}

// NewSpawner starts the thread. The caller must Close the Spawner.
func NewSpawner() *Spawner {
	s := &Spawner{requests: make(chan request)}
	go s.run()
	return s
}

func (s *Spawner) run() {
	runtime.LockOSThread() // never unlocked, so that the thread exits with this goroutine
	for r := range s.requests {
		r.result <- r.command.Start()
	}
}

// Close ends the thread, so that the kernel kills all running processes.
func (s *Spawner) Close() { close(s.requests) }

// Start starts a process. It first rotates a log file that is larger than logLimit.
func (s *Spawner) Start(command Command) (*Process, error) {
	log, err := openLog(command.LogFile)
	if err != nil {
		return nil, fmt.Errorf("open the log: %w", err)
	}
	defer log.Close()
	cmd := &exec.Cmd{
		Path: command.Executable, Args: append([]string{command.Name}, command.Args...), Env: command.Environment,
		Dir: command.Directory, Stdout: log, Stderr: log, SysProcAttr: attributes(),
	}
	if cmd.Env == nil {
		cmd.Env = []string{}
	}
	result := make(chan error)
	s.requests <- request{command: cmd, result: result}
	if err := <-result; err != nil {
		return nil, fmt.Errorf("start %s: %w", command.Name, err)
	}
	p := &Process{cmd: cmd, started: time.Now(), done: make(chan struct{})}
	go p.wait()
	return p, nil
}

// logLimit is the size in bytes above which Start rotates a log file.
const logLimit = 16 << 20

func openLog(file string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return nil, err
	}
	info, err := os.Stat(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err == nil && info.Size() > logLimit {
		if err := os.Rename(file, file+".old"); err != nil {
			return nil, err
		}
	}
	return os.OpenFile(file, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
}

// Process is a started process.
type Process struct {
	cmd     *exec.Cmd
	started time.Time
	done    chan struct{}
	exit    Exit // written before done is closed
}

// Exit describes the termination of a process.
type Exit struct {
	Code   int // 128 + signal if a signal killed the process, as in container runtimes
	Signal int
	At     time.Time
}

func (p *Process) wait() {
	p.cmd.Wait() // ProcessState contains the same information as the error
	p.exit = Exit{Code: p.cmd.ProcessState.ExitCode(), At: time.Now()}
	if status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		p.exit.Signal = int(status.Signal())
		p.exit.Code = 128 + p.exit.Signal
	}
	close(p.done)
}

// ID returns the process ID.
func (p *Process) ID() int { return p.cmd.Process.Pid }

// Started returns the start time of the process.
func (p *Process) Started() time.Time { return p.started }

// Done returns a channel that is closed when the process has exited.
func (p *Process) Done() <-chan struct{} { return p.done }

// Exit returns the termination of the process, and false while the process runs.
func (p *Process) Exit() (Exit, bool) {
	select {
	case <-p.done:
		return p.exit, true
	default:
		return Exit{}, false
	}
}

// Terminate sends SIGTERM if the process runs.
func (p *Process) Terminate() { p.cmd.Process.Signal(syscall.SIGTERM) }

// Kill sends SIGKILL.
func (p *Process) Kill() { p.cmd.Process.Kill() }

// Stop sends SIGTERM to the process, kills it after the grace period, and returns when it has exited.
func (p *Process) Stop(grace time.Duration) {
	p.Terminate()
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
		p.Kill()
		<-p.done
	}
}
