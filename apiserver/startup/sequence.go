// Package startup runs the hooks of a replica, which do its background work. A Sequence, which is plain data, defines
// their order.
//
// All hooks are started at the same time, and each runs when the hooks that it depends on are done. A hook is done when
// it calls done, or when its run returns. Thus a controller that works until the replica stops can be done as soon as
// it has started. The position in the sequence only determines the order of health checks, which is the same as
// kube-apiserver's.
//
// A replica stops in two steps. First, while requests are still served, the contexts of hooks with leases end, and the
// hooks release the leases and endpoints of the replica. After requests have been drained, the contexts of all other
// hooks end.
//
// No function of the package holds a lock while it calls a hook.
package startup

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// Run works until it is finished or ctx ends. It calls done when the hooks that depend on it may run; further calls
// have no effect. Returning nil before ctx ends implies done. An error stops the replica.
type Run func(ctx context.Context, done func()) error

// Hook is one step of starting a replica.
type Hook struct {
	// Name is the unique name of the hook: the name of kube-apiserver's post-start hook if there is a corresponding
	// one.
	Name string
	// After has the names of the hooks that must be done before this hook runs.
	After []string
	// Check is set if the hook is reported as poststarthook/NAME on /healthz, /livez and /readyz, as by kube-apiserver.
	Check bool
	// Leases is set for hooks that hold a lease or an endpoint for this replica and release it when their context ends.
	// Their contexts end before requests are drained, because the release requires requests or writes.
	Leases bool
	// Restarts is set for hooks whose run can be called again after a panic. After a panic of another hook, its state
	// may be inconsistent; therefore the replica stops.
	Restarts bool
	Run      Run
}

// Sequence has the hooks of a replica, in the order of their health checks.
type Sequence []Hook

// Waves groups the names of the hooks into waves: the hooks of a wave depend only on hooks of earlier waves. It returns
// an error if two hooks have the same name, if a hook depends on an unknown hook, or if dependencies form a cycle.
func (s Sequence) Waves() (waves [][]string, err error) {
	known, finished := map[string]bool{}, map[string]bool{}
	for _, hook := range s {
		if known[hook.Name] {
			return nil, fmt.Errorf("two hooks are named %s", hook.Name)
		}
		known[hook.Name] = true
	}
	for _, hook := range s {
		for _, dependency := range hook.After {
			if !known[dependency] {
				return nil, fmt.Errorf("hook %s depends on the unknown hook %s", hook.Name, dependency)
			}
		}
	}
	for len(finished) < len(s) {
		wave := s.ready(finished)
		if len(wave) == 0 {
			return nil, fmt.Errorf("hooks can never run, because they depend on each other: %v", s.unfinished(finished))
		}
		for _, name := range wave {
			finished[name] = true
		}
		waves = append(waves, wave)
	}
	return waves, nil
}

// ready returns the names of the unfinished hooks whose dependencies are all finished.
func (s Sequence) ready(finished map[string]bool) (names []string) {
	for _, hook := range s {
		waits := slices.ContainsFunc(hook.After, func(dependency string) bool { return !finished[dependency] })
		if !finished[hook.Name] && !waits {
			names = append(names, hook.Name)
		}
	}
	return names
}

func (s Sequence) unfinished(finished map[string]bool) (names []string) {
	for _, hook := range s {
		if !finished[hook.Name] {
			names = append(names, hook.Name)
		}
	}
	return names
}

// String returns one line for each hook, in waves that are separated by empty lines. A line has the name, the
// properties and the dependencies of a hook.
func (s Sequence) String() string {
	waves, err := s.Waves()
	if err != nil {
		return err.Error()
	}
	byName := map[string]Hook{}
	for _, hook := range s {
		byName[hook.Name] = hook
	}
	var blocks []string
	for _, wave := range waves {
		var block strings.Builder
		for _, name := range wave {
			block.WriteString(byName[name].String() + "\n")
		}
		blocks = append(blocks, block.String())
	}
	return strings.Join(blocks, "\n")
}

// String returns the name, the properties and the dependencies of a hook.
func (h Hook) String() string {
	text := h.Name
	for _, property := range []struct {
		name string
		set  bool
	}{{"check", h.Check}, {"leases", h.Leases}, {"restarts", h.Restarts}} {
		if property.set {
			text += " [" + property.name + "]"
		}
	}
	if len(h.After) > 0 {
		text += " after " + strings.Join(h.After, ", ")
	}
	return text
}
