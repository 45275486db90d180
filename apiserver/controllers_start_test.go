package apiserver

import (
	"context"
	"testing"
	"testing/synctest"

	"quorate.dev/apiserver/config"
)

// TestControllersWaitForDefinitions: the garbage collector and the namespace controller act on what discovery lacks.
func TestControllersWaitForDefinitions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		c := config.Default()
		c.Controllers.Enabled = []string{"namespace-controller"}
		s := &Server{config: c, bootstrapped: make(chan struct{}), complete: make(chan struct{})}
		close(s.bootstrapped)
		done := make(chan error, 1)
		go func() { done <- s.runControllers(ctx) }()
		synctest.Wait()
		select {
		case err := <-done:
			t.Fatalf("they started, or ended: %v", err)
		default:
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
