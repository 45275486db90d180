package startup

import (
	"context"

	"golang.org/x/sync/errgroup"

	"quorate.dev/panics"
)

// Forever returns the run of a hook that works until ctx ends and cannot fail.
func Forever(run func(ctx context.Context)) Run {
	return func(ctx context.Context, _ func()) error {
		run(ctx)
		return nil
	}
}

// Begin returns the run of a hook that is done immediately and works until ctx ends.
func Begin(run func(ctx context.Context)) Run {
	return func(ctx context.Context, done func()) error {
		done()
		run(ctx)
		return nil
	}
}

// Finished is the run of a hook that is done when the hooks that it depends on are done.
func Finished(context.Context, func()) error { return nil }

// Await returns the run of a hook that is done when the channel closed is closed.
func Await(closed <-chan struct{}) Run {
	return func(ctx context.Context, _ func()) error {
		select {
		case <-closed:
		case <-ctx.Done():
		}
		return nil
	}
}

// Together runs functions concurrently until all have returned. The first error or panic cancels the others.
func Together(ctx context.Context, functions ...func(context.Context) error) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, run := range functions {
		group.Go(func() error { return panics.Catch(func() error { return run(ctx) }) })
	}
	return group.Wait()
}
