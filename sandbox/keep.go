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
	startTimeout  = 2 * time.Minute // long, because the server may have to read a large database
	startAttempts = 3               // etcd may panic if an election coincides with the replay of its log
	readyInterval = 20 * time.Millisecond
)

var errNotStarted = errors.New("the management API server did not start")

// supervise runs a process until ctx is done: it starts the process again whenever the process exits, and finally stops
// it. The process running, if not nil, is already started.
func (s *sandbox) supervise(ctx context.Context, name string, running *process.Process, command process.Command) error {
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
		s.display.Show(progress.Event{
			Event:   "note",
			Message: fmt.Sprintf("the %s ended with code %d and is started again; see %s", name, exit.Code, command.LogFile),
		})
		select {
		case <-ctx.Done():
		case <-time.After(backoff.Next(exit.At.Sub(running.Started()))):
		}
		running = nil
	}
	return nil
}

// startServer starts the management API server, and returns when the server is ready.
func (s *sandbox) startServer(ctx context.Context) (*part, error) {
	command := process.Command{
		Executable: executable, Name: "quorate", Args: append([]string{"apiserver"}, s.plane.Args()...),
		Environment: os.Environ(), Directory: s.home.path, LogFile: s.home.file("logs", "management.log"),
	}
	for attempt := 1; ; attempt++ {
		running, err := s.spawner.Start(command)
		if err != nil {
			return nil, err
		}
		err = s.awaitServer(ctx, running, command.LogFile)
		if err == nil {
			return s.begin(func(ctx context.Context) error {
				return s.supervise(ctx, "management API server", running, command)
			}), nil
		}
		running.Stop(stopGrace)
		if attempt == startAttempts || !errors.Is(err, errNotStarted) {
			return nil, s.outcome(ctx, err)
		}
		s.log.Info("The management API server exited before it was ready; restarting it", "attempt", attempt)
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
	for deadline := time.Now().Add(startTimeout); time.Now().Before(deadline); {
		if ready(ctx, client, config.Host) {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		case <-running.Done():
			return fmt.Errorf("%w; the end of its log %s:\n%s\nIf its data is corrupted, delete it with `quorate sandbox "+
				"delete --dir %s`",
				errNotStarted, s.home.show("logs", "management.log"), process.Tail(logFile, 1500), s.home.shown)
		}
	}
	return fmt.Errorf("the management API server is not ready after %s; see %s", startTimeout, logFile)
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
