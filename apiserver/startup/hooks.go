package startup

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"

	"quorate.dev/apiserver/serving"
	"quorate.dev/panics"
)

// Hooks runs the hooks of one replica.
type Hooks struct {
	sequence Sequence
	panics   *panics.Reporter
	// done and ended have one channel for each hook. The channel in done is closed when the hook is done, at most once.
	// The channel in ended is closed when the run of the hook has returned, or when the hook will never run.
	done, ended map[string]chan struct{}
}

// New returns hooks that have not been started. It returns an error if the dependencies of the sequence cannot be
// satisfied.
func New(sequence Sequence, reporter *panics.Reporter) (*Hooks, error) {
	if _, err := sequence.Waves(); err != nil {
		return nil, err
	}
	h := &Hooks{sequence: sequence, panics: reporter, done: map[string]chan struct{}{}, ended: map[string]chan struct{}{}}
	for _, hook := range sequence {
		h.done[hook.Name], h.ended[hook.Name] = make(chan struct{}), make(chan struct{})
	}
	return h, nil
}

// Sequence returns the hooks in the order of their health checks.
func (h *Hooks) Sequence() Sequence { return h.sequence }

// Done returns the signal that a hook is done. If there is no such hook, it returns nil, a signal that is never
// reached.
func (h *Hooks) Done(name string) Signal { return h.done[name] }

// AddChecks adds the checks of the reported hooks to health in the order of the sequence. following has further checks
// by the name of the hook whose check they follow.
func (h *Hooks) AddChecks(health *serving.Health, following map[string]serving.Check) {
	for _, hook := range h.sequence {
		if hook.Check {
			check := h.Done(hook.Name).Check
			health.Add(serving.AllEndpoints, serving.Check{Name: "poststarthook/" + hook.Name, Run: check, StartUp: true})
		}
		if check, ok := following[hook.Name]; ok {
			health.Add(serving.AllEndpoints, check)
		}
	}
}

// Start runs the hooks with leases until leasing ends, and all other hooks until background ends.
func (h *Hooks) Start(background, leasing context.Context, work *errgroup.Group) {
	for _, hook := range h.sequence {
		ctx := background
		if hook.Leases {
			ctx = leasing
		}
		work.Go(func() error { return h.run(ctx, hook) })
	}
}

// run waits for the hooks that a hook depends on, and runs the hook. It returns no error if ctx ends.
func (h *Hooks) run(ctx context.Context, hook Hook) error {
	defer close(h.ended[hook.Name])
	for _, name := range hook.After {
		select {
		case <-h.done[name]:
		case <-ctx.Done():
			return nil
		}
	}
	done := sync.OnceFunc(func() { close(h.done[hook.Name]) })
	err := h.runSupervised(ctx, hook, done)
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return fmt.Errorf("start-up hook %s: %w", hook.Name, err)
	}
	done()
	return nil
}

// runSupervised runs a hook and reports its panics. If the hook restarts, it runs again after a delay. A panic of
// another hook becomes its error, which stops the replica in an orderly way: its etcd member first transfers
// leadership.
func (h *Hooks) runSupervised(ctx context.Context, hook Hook, done func()) error {
	run := func(ctx context.Context) error { return hook.Run(ctx, done) }
	if hook.Restarts {
		return h.panics.Keep(ctx, hook.Name, run)
	}
	h.panics.Expect(hook.Name)
	err := panics.Catch(func() error { return run(ctx) })
	h.panics.Report(hook.Name, err)
	return err
}

// AwaitEnd waits until the run of a hook has returned or cut is closed. It returns immediately if there is no such
// hook.
func (h *Hooks) AwaitEnd(name string, cut <-chan struct{}) {
	if ended, ok := h.ended[name]; ok {
		select {
		case <-ended:
		case <-cut:
		}
	}
}

// Released returns a channel that is closed when every hook with leases has ended.
func (h *Hooks) Released() <-chan struct{} {
	released := make(chan struct{})
	go func() {
		defer close(released)
		for _, hook := range h.sequence {
			if hook.Leases {
				<-h.ended[hook.Name]
			}
		}
	}()
	return released
}

// Signal is a channel that is closed when something has been reached.
type Signal <-chan struct{}

// Check is a health check that fails until the channel is closed.
func (s Signal) Check(context.Context) error {
	if s.Reached() {
		return nil
	}
	return errors.New("not finished")
}

// Reached reports whether the channel is closed.
func (s Signal) Reached() bool {
	select {
	case <-s:
		return true
	default:
		return false
	}
}
