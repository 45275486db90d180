package apiserver

import (
	"context"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"

	"quorate.dev/apiserver/serving"
)

// hook is one step of starting a replica. All hooks start at once; each runs when the hooks that it depends on are
// done.
type hook struct {
	// name is unique. It is that of kube-apiserver's post-start hook where there is one.
	name string
	// after names the hooks that must be done before this one runs.
	after []string
	// check reports the hook as poststarthook/NAME on /healthz, /livez and /readyz, as kube-apiserver does.
	check bool
	// leases marks hooks that hold something on behalf of this replica, such as a lease or an endpoint, and release it
	// when their context ends. They end before requests are drained, because releasing takes requests or writes.
	leases bool
	// run works until it is finished or ctx ends, and calls done when hooks that depend on it may run. Returning nil
	// before ctx ends implies done. An error ends the replica.
	run func(ctx context.Context, done func()) error
}

// hooks runs the start-up hooks of one replica.
type hooks struct {
	list []hook
	// done and ended have one channel per hook. done is closed at most once, while or after the hook runs; ended when
	// its run has returned.
	done, ended map[string]chan struct{}
}

func newHooks(list []hook) *hooks {
	h := &hooks{list: list, done: map[string]chan struct{}{}, ended: map[string]chan struct{}{}}
	for _, hook := range list {
		h.done[hook.name], h.ended[hook.name] = make(chan struct{}), make(chan struct{})
	}
	return h
}

// addChecks adds the reported hooks to health in the order of the list, and after some of them, by name, another check.
func (h *hooks) addChecks(health *serving.Health, following map[string]serving.Check) {
	for _, hook := range h.list {
		if hook.check {
			check := closedCheck(h.done[hook.name]).check
			health.Add(serving.AllEndpoints, serving.Check{Name: "poststarthook/" + hook.name, Run: check, StartUp: true})
		}
		if check, ok := following[hook.name]; ok {
			health.Add(serving.AllEndpoints, check)
		}
	}
}

// start runs the hooks that hold leases until leasing ends, and all others until background ends.
func (h *hooks) start(background, leasing context.Context, work *errgroup.Group) {
	for _, hook := range h.list {
		ctx := background
		if hook.leases {
			ctx = leasing
		}
		work.Go(func() error { return h.run(ctx, hook) })
	}
}

// run waits for the dependencies of a hook and runs it. The end of ctx is no error.
func (h *hooks) run(ctx context.Context, hook hook) error {
	defer close(h.ended[hook.name])
	for _, name := range hook.after {
		select {
		case <-h.done[name]:
		case <-ctx.Done():
			return nil
		}
	}
	done := sync.OnceFunc(func() { close(h.done[hook.name]) })
	err := hook.run(ctx, done)
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return fmt.Errorf("start-up hook %s: %w", hook.name, err)
	}
	done()
	return nil
}

// awaitEnd waits until a hook's run has returned, or it is cut short. It returns at once if there is no such hook.
func (h *hooks) awaitEnd(name string, cut <-chan struct{}) {
	if ended, ok := h.ended[name]; ok {
		select {
		case <-ended:
		case <-cut:
		}
	}
}

// released returns a channel that is closed when every hook that holds a lease has ended.
func (h *hooks) released() <-chan struct{} {
	released := make(chan struct{})
	go func() {
		defer close(released)
		for _, hook := range h.list {
			if hook.leases {
				<-h.ended[hook.name]
			}
		}
	}()
	return released
}

// forever adapts work that lasts until ctx ends and cannot fail.
func forever(run func(ctx context.Context)) func(context.Context, func()) error {
	return func(ctx context.Context, _ func()) error {
		run(ctx)
		return nil
	}
}

// begin returns the run of a hook that is done at once and works until ctx ends.
func begin(run func(ctx context.Context)) func(context.Context, func()) error {
	return func(ctx context.Context, done func()) error {
		done()
		run(ctx)
		return nil
	}
}

// finished is the run of a hook that is done when those before it are.
func finished(context.Context, func()) error { return nil }

// await returns the run of a hook that is done when closed is closed.
func await(closed <-chan struct{}) func(context.Context, func()) error {
	return func(ctx context.Context, _ func()) error {
		select {
		case <-closed:
		case <-ctx.Done():
		}
		return nil
	}
}

// together runs functions concurrently until all have returned. The first error cancels the others.
func together(ctx context.Context, functions ...func(context.Context) error) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, run := range functions {
		group.Go(func() error { return run(ctx) })
	}
	return group.Wait()
}
