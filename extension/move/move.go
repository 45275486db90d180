// Package move moves the objects of an API group between a cluster, the host, and an extension server that serves the
// group to it: from CustomResourceDefinitions of the host to CustomResourceDefinitions of the extension server, and
// back.
//
// All CustomResourceDefinitions of a group move together, because the host has one APIService for each version of the
// group. A move is a list of steps. A ConfigMap of the host records each step before it begins, and every step can be
// repeated, so that an interrupted move continues where it stopped. No object of the source is deleted before all
// objects were equal in both places while no client could change either.
//
// The host's garbage collector deletes a dependent if its owner does not exist or has another UID. Invariants that
// protect dependents: a request for owners never returns an incomplete set of objects. A single update switches an
// APIService from one server to the other, and around the switch the group responds with 503, until clients may read
// the copies. Copies in the extension server keep their UIDs. Copies in the host have new UIDs, and the owner
// references of their dependents are rewritten while the group responds with 503. Deletions in the host's etcd use
// accessVersion, which the garbage collector does not watch.
package move

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/transfer"
)

// manager is the field manager of the move's writes to the host.
const manager = "quorate-extension-move"

// Options configure a move.
type Options struct {
	Group     string
	Direction Direction
	Host      *rest.Config
	Extension *rest.Config // credentials of a member of system:masters; connects directly, not through the host
	// Namespace is the namespace of the host with the ConfigMap of the state.
	Namespace    string
	Registration Registration // for ToExtension
	// Settle is the time after which a change has reached all replicas of the host's API server and its clients.
	Settle time.Duration
	// Timeout bounds each wait.
	Timeout time.Duration
	Report  func(line string)
	Clock   clock.Clock
	// Before, if not nil, is called when a step is recorded and before it runs. Its error ends the run.
	Before func(step string) error
}

// Mover moves one API group.
type Mover struct {
	Options
	host, extension *cluster
	stored          *corev1.ConfigMap
}

// cluster contains the clients of the host or of the extension server.
type cluster struct {
	name     string
	objects  dynamic.Interface
	transfer dynamic.Interface // for the extension server, with the header of a transfer
	typed    kubernetes.Interface
	metadata metadata.Interface
}

// New returns a Mover. It does not connect to the clusters.
func New(options Options) (*Mover, error) {
	m := &Mover{Options: options}
	var err error
	if m.host, err = connect("host", options.Host); err == nil {
		m.extension, err = connect("extension server", options.Extension)
	}
	if err == nil {
		marked := rest.CopyConfig(options.Extension)
		marked.Wrap(func(next http.RoundTripper) http.RoundTripper { return withHeader{next} })
		m.extension.transfer, err = dynamic.NewForConfig(unlimited(marked))
	}
	return m, err
}

func unlimited(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.QPS, config.UserAgent, config.WarningHandler = -1, manager, rest.NoWarnings{}
	return config
}

func connect(name string, config *rest.Config) (c *cluster, err error) {
	c, config = &cluster{name: name}, unlimited(config)
	if c.objects, err = dynamic.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("connect to the %s: %w", name, err)
	}
	if c.metadata, err = metadata.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("connect to the %s: %w", name, err)
	}
	if c.typed, err = kubernetes.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("connect to the %s: %w", name, err)
	}
	c.transfer = c.objects
	return c, nil
}

type withHeader struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (t withHeader) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set(transfer.Header, "true")
	return t.next.RoundTrip(r)
}

type stepName string

// step is one part of a move. It is idempotent, because an interrupted move repeats it.
type step struct {
	name stepName
	text string
	run  func(*Mover, context.Context, *state) error
	// final is set if the step and all later ones cannot be undone.
	final bool
}

var steps = map[Direction][]step{
	ToExtension: {
		{"Define", "Create the definitions in the extension server", (*Mover).createDefinitions, false},
		{"Copy", "Copy all objects", (*Mover).copyAll, false},
		{"Freeze", "Block writes", (*Mover).freezeAll, false},
		{"Verify", "Compare all objects", (*Mover).verifyAll, false},
		{"Register", "Send requests to the extension server, which responds with 503", (*Mover).registerExtension, false},
		{"Disconnect", "End watches of the host's objects", (*Mover).disconnectHost, false},
		{"Activate", "Serve the objects from the extension server", (*Mover).activateExtension, true},
		{"Delete", "Delete the objects and the definitions in the host", (*Mover).deleteFromHost, true},
	},
	ToHost: {
		{"Define", "Create the definitions in the host", (*Mover).createHostDefinitions, false},
		{"Copy", "Copy all objects", (*Mover).copyAll, false},
		{"Freeze", "Block writes", (*Mover).freezeAll, false},
		{"Verify", "Compare all objects", (*Mover).verifyAll, false},
		{"Disconnect", "Respond to requests with 503, end watches", (*Mover).disconnectExtension, false},
		{"Owners", "Rewrite owner references to the new UIDs", (*Mover).rewriteOwners, true},
		{"Terminate", "Delete the copies of objects that are being deleted", (*Mover).deleteAsBefore, true},
		{"Register", "Serve the objects from the host", (*Mover).registerAndServe, true},
		{"Activate", "Admit writes", (*Mover).activateHost, true},
		{"Delete", "Delete the objects and the definitions in the extension server", (*Mover).deleteFromExtension, true},
	},
}

// maxRounds bounds how often a move copies everything, because objects have changed although writes are blocked.
const maxRounds = 3

// Run begins the move, or continues it at the recorded step.
func (m *Mover) Run(ctx context.Context) error {
	s, err := m.load(ctx)
	if err != nil {
		return err
	}
	if s == nil {
		if s, err = m.begin(ctx); err != nil {
			return err
		}
	} else {
		m.report("Continuing at step %s", s.Step)
	}
	if s.Direction != m.Direction {
		return fmt.Errorf("a move %s is under way; finish or abort it first", s.Direction)
	}
	for round := 1; ; round++ {
		err := m.runSteps(ctx, s)
		if !errors.Is(err, errChanged) || round == maxRounds {
			return err
		}
		m.report("  %v; copying again", err)
		if err := m.reconnect(ctx, s); err != nil {
			return err
		}
		if err := m.enter(ctx, s, "Copy"); err != nil {
			return err
		}
	}
}

func (m *Mover) enter(ctx context.Context, s *state, name stepName) error {
	s.Step = name
	return m.save(ctx, s)
}

// runSteps runs the recorded step and all later ones, and then deletes the state.
func (m *Mover) runSteps(ctx context.Context, s *state) error {
	list := steps[s.Direction]
	first := indexOf(list, s.Step)
	if first < 0 {
		return fmt.Errorf("unknown step %q of a move %s: use the version of quorate that began it", s.Step, s.Direction)
	}
	for i := first; i < len(list); i++ {
		one := list[i]
		if err := m.enter(ctx, s, one.name); err != nil {
			return err
		}
		m.report("[%d/%d] %s", i+1, len(list), one.text)
		if m.Before != nil {
			if err := m.Before(string(one.name)); err != nil {
				return err
			}
		}
		if err := one.run(m, ctx, s); err != nil {
			return fmt.Errorf("step %s: %w", one.name, err)
		}
	}
	if err := m.forget(ctx); err != nil {
		return fmt.Errorf("delete the state of the move: %w", err)
	}
	m.report("Done")
	return nil
}

func indexOf(list []step, name stepName) int {
	for i := range list {
		if list[i].name == name {
			return i
		}
	}
	return -1
}

// begin checks the clusters and records the move. It returns a ProblemsError if the move cannot begin.
func (m *Mover) begin(ctx context.Context) (*state, error) {
	p, err := m.Plan(ctx)
	if err != nil {
		return nil, err
	}
	if len(p.Problems) > 0 {
		return nil, &ProblemsError{p.Problems}
	}
	s := &state{Direction: m.Direction, Step: steps[m.Direction][0].name, Resources: p.resources, Priorities: p.priorities}
	return s, m.save(ctx, s)
}

func (m *Mover) report(format string, arguments ...any) {
	if m.Report != nil {
		m.Report(fmt.Sprintf(format, arguments...))
	}
}

const pollInterval = 200 * time.Millisecond

// await waits until condition returns nil. Its error contains the last error of condition.
func (m *Mover) await(ctx context.Context, what string, condition func(context.Context) error) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, pollInterval, m.Timeout, true, func(ctx context.Context) (bool, error) {
		last = condition(ctx)
		return last == nil, nil
	})
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return fmt.Errorf("timed out waiting for %s: %w", what, last)
}

// repetitions is how often a condition must hold in succession: each request may reach another replica.
const repetitions = 3

func (m *Mover) awaitRepeatedly(ctx context.Context, what string, condition func(context.Context) error) error {
	return m.await(ctx, what, func(ctx context.Context) error {
		for range repetitions {
			if err := condition(ctx); err != nil {
				return err
			}
		}
		return nil
	})
}

// settle waits for Settle, in which a change reaches those replicas of the host that the move cannot observe.
func (m *Mover) settle(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-m.Clock.After(m.Settle):
		return nil
	}
}
