// Package process starts and stops the processes of a sandbox. They are all this same binary, each leads a
// process group of its own, and none outlives the sandbox.
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

// Command says what to start.
type Command struct {
	Executable  string
	Name        string // argv[0]
	Args        []string
	Environment []string // name=value, complete: nothing is inherited
	Directory   string   // working directory
	LogFile     string   // stdout and stderr are appended
}

// Spawner starts processes from one thread that it keeps. The kernel kills a child when the thread that made it
// ends, and Go ends threads as it likes; a thread kept for as long as the Spawner is what ties the children's
// lives to the sandbox's.
type Spawner struct {
	requests chan request
}

type request struct {
	command *exec.Cmd
	result  chan error
}

// NewSpawner starts the thread.
func NewSpawner() *Spawner {
	s := &Spawner{requests: make(chan request)}
	go s.run()
	return s
}

func (s *Spawner) run() {
	runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
	for r := range s.requests {
		r.result <- r.command.Start()
	}
}

// Close ends the thread, and with it every process that still runs.
func (s *Spawner) Close() { close(s.requests) }

// Start starts a process. When the log file has grown beyond logLimit it is put aside first.
func (s *Spawner) Start(command Command) (*Process, error) {
	log, err := openLog(command.LogFile)
	if err != nil {
		return nil, fmt.Errorf("opening the log: %w", err)
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
		return nil, fmt.Errorf("starting %s: %w", command.Name, err)
	}
	p := &Process{cmd: cmd, started: time.Now(), done: make(chan struct{})}
	go p.wait()
	return p, nil
}

// logLimit is the size in bytes at which a log is put aside when its process starts.
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

// Process is a process that was started.
type Process struct {
	cmd     *exec.Cmd
	started time.Time
	done    chan struct{}
	exit    Exit // written before done is closed
}

// Exit is how a process ended.
type Exit struct {
	Code   int // 128 + signal when a signal ended it, as container runtimes report
	Signal int
	At     time.Time
}

func (p *Process) wait() {
	p.cmd.Wait() // its error says the same as ProcessState
	p.exit = Exit{Code: p.cmd.ProcessState.ExitCode(), At: time.Now()}
	if status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		p.exit.Signal = int(status.Signal())
		p.exit.Code = 128 + p.exit.Signal
	}
	close(p.done)
}

// ID is the process id.
func (p *Process) ID() int { return p.cmd.Process.Pid }

// Started is when it was started.
func (p *Process) Started() time.Time { return p.started }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Exit returns how it ended, once it has.
func (p *Process) Exit() (Exit, bool) {
	select {
	case <-p.done:
		return p.exit, true
	default:
		return Exit{}, false
	}
}

// Terminate asks it to end. A process that has ended is left alone.
func (p *Process) Terminate() { p.cmd.Process.Signal(syscall.SIGTERM) }

// Kill ends it at once.
func (p *Process) Kill() { p.cmd.Process.Kill() }

// Stop asks it to end and, after grace, ends it. It returns when the process is gone.
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
