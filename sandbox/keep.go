package sandbox

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"k8s.io/client-go/rest"

	"quorate.dev/sandbox/process"
	"quorate.dev/sandbox/progress"
)

const (
	stopGrace     = 15 * time.Second
	startPatience = 2 * time.Minute // a big database takes its time
	startAttempts = 3               // etcd may panic when an election falls into the replay of its log; the next try succeeds
	readyInterval = 20 * time.Millisecond
)

var errNotStarted = errors.New("the management API server did not start")

// keep starts a process whenever it does not run, until ctx is done; then it stops it. The first may run already.
func (s *sandbox) keep(ctx context.Context, name string, running *process.Process, command process.Command) error {
	var backoff process.Backoff
	for ctx.Err() == nil {
		if running == nil {
			started, err := s.spawner.Start(command)
			if err != nil {
				return err
			}
			running = started
		}
		select {
		case <-ctx.Done():
			running.Stop(stopGrace)
			return nil
		case <-running.Done():
		}
		exit, _ := running.Exit()
		s.display.Show(progress.Event{Event: "note", Message: fmt.Sprintf("the %s ended with code %d and is started again; see %s", name, exit.Code, command.LogFile)})
		select {
		case <-ctx.Done():
		case <-time.After(backoff.Next(exit.At.Sub(running.Started()))):
		}
		running = nil
	}
	return nil
}

// startServer starts the management API server and returns when it is ready.
func (s *sandbox) startServer(ctx context.Context) (*part, error) {
	command := process.Command{
		Executable: executable, Name: "quorate", Args: append([]string{"apiserver"}, s.plane.Args()...), Environment: os.Environ(),
		Directory: s.home.path, LogFile: s.home.file("logs", "management.log"),
	}
	for attempt := 1; ; attempt++ {
		running, err := s.spawner.Start(command)
		if err != nil {
			return nil, err
		}
		err = s.awaitServer(ctx, running, command.LogFile)
		if err == nil {
			return s.begin(func(ctx context.Context) error { return s.keep(ctx, "management API server", running, command) }), nil
		}
		running.Stop(stopGrace)
		if attempt == startAttempts || !errors.Is(err, errNotStarted) {
			return nil, s.outcome(ctx, err)
		}
		s.log.Info("the management API server ended before it was ready and is started again", "attempt", attempt)
	}
}

func (s *sandbox) awaitServer(ctx context.Context, running *process.Process, logFile string) error {
	config, err := s.restConfig()
	if err != nil {
		return err
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	tick := time.NewTicker(readyInterval)
	defer tick.Stop()
	for deadline := time.Now().Add(startPatience); time.Now().Before(deadline); {
		if ready(ctx, client, config.Host) {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		case <-running.Done():
			return fmt.Errorf("%w; its log, %s, ends with\n%s\nIf its data is broken, start over with `quorate sandbox delete --dir %s`",
				errNotStarted, s.home.show("logs", "management.log"), process.Tail(logFile, 1500), s.home.shown)
		}
	}
	return fmt.Errorf("the management API server is not ready after %s; see %s", startPatience, logFile)
}

func ready(ctx context.Context, client *http.Client, host string) bool {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, host+"/readyz", nil)
	if err != nil {
		return false
	}
	response, err := client.Do(request)
	if err != nil {
		return false
	}
	response.Body.Close()
	return response.StatusCode == http.StatusOK
}
