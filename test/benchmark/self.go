package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
)

// self is a process of this program that has another task, which an environment variable names. The process ends when
// its standard input ends.
type self struct {
	process *exec.Cmd
	input   io.Closer
	output  io.Reader
}

// startSelf starts a process with additional environment variables, each as NAME=VALUE.
func startSelf(ctx context.Context, environment ...string) (*self, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	s := &self{process: exec.CommandContext(ctx, program)}
	s.process.Env = append(os.Environ(), environment...)
	s.process.Stderr = os.Stderr
	if s.input, err = s.process.StdinPipe(); err != nil {
		return nil, err
	}
	if s.output, err = s.process.StdoutPipe(); err != nil {
		return nil, err
	}
	return s, s.process.Start()
}

// Stop ends the process and waits for its end.
func (s *self) Stop() error { return errors.Join(s.input.Close(), s.process.Wait()) }

// untilInputEnds returns a context that ends with the standard input of this process.
func untilInputEnds(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	return ctx
}
