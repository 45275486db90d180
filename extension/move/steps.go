package move

import (
	"context"
	"errors"
	"fmt"
)

// disconnectHost ends the watches of the host's objects, and checks that the objects have not changed since the
// verification. The clients of the watches list again, and get 503 until the extension server serves the objects.
func (m *Mover) disconnectHost(ctx context.Context, s *state) error {
	if err := m.addAccess(ctx, s); err != nil {
		return err
	}
	if err := m.settle(ctx); err != nil {
		return err
	}
	return m.checkUnchanged(ctx, s)
}

// activateExtension makes the extension server serve its copies to clients. Writes to the objects in the host's etcd
// stay blocked.
func (m *Mover) activateExtension(ctx context.Context, s *state) error {
	if err := m.freeze(ctx, s, []string{accessVersion}); err != nil {
		return err
	}
	for _, r := range s.Resources {
		if err := m.mark(ctx, r, ""); err != nil {
			return err
		}
	}
	return m.awaitAvailable(ctx, s)
}

// deleteFromHost deletes the objects and definitions of the host, and everything else that the move has created in it.
func (m *Mover) deleteFromHost(ctx context.Context, s *state) error {
	if err := m.deleteSource(ctx, s); err != nil {
		return err
	}
	if err := m.deleteDefinitions(ctx, m.host, s); err != nil {
		return err
	}
	return errors.Join(m.unregisterAccess(ctx), m.restorePriorities(ctx, s), m.unfreeze(ctx))
}

// disconnectExtension makes the extension server respond with 503 to clients, and checks that its objects have not
// changed since the verification.
func (m *Mover) disconnectExtension(ctx context.Context, s *state) error {
	for _, r := range s.Resources {
		if err := m.mark(ctx, r, string(s.Direction)); err != nil {
			return err
		}
	}
	if err := m.awaitUnavailable(ctx, s); err != nil {
		return err
	}
	return m.checkUnchanged(ctx, s)
}

// registerAndServe makes the host serve the copies, with the conversion of the definitions and without accessVersion.
func (m *Mover) registerAndServe(ctx context.Context, s *state) error {
	if err := m.removeAccess(ctx, s); err != nil {
		return err
	}
	if err := m.registerHost(ctx, s); err != nil {
		return err
	}
	if err := m.awaitAvailable(ctx, s); err != nil {
		return err
	}
	return m.unregisterAccess(ctx)
}

// activateHost admits writes to the objects, which the host already serves.
func (m *Mover) activateHost(ctx context.Context, _ *state) error { return m.unfreeze(ctx) }

// deleteFromExtension deletes the objects and definitions of the extension server.
func (m *Mover) deleteFromExtension(ctx context.Context, s *state) error {
	if err := m.deleteSource(ctx, s); err != nil {
		return err
	}
	return m.deleteDefinitions(ctx, m.extension, s)
}

// reconnect makes the source serve clients again.
func (m *Mover) reconnect(ctx context.Context, s *state) error {
	if s.Direction == ToHost {
		for _, r := range s.Resources {
			if err := m.mark(ctx, r, ""); err != nil {
				return err
			}
		}
		return m.awaitAvailable(ctx, s)
	}
	if err := m.removeAccess(ctx, s); err != nil {
		return err
	}
	if err := m.registerHost(ctx, s); err != nil {
		return err
	}
	return errors.Join(m.awaitAvailable(ctx, s), m.unregisterAccess(ctx))
}

// Abort undoes a move that has not reached a step that cannot be undone.
func (m *Mover) Abort(ctx context.Context) error {
	s, err := m.load(ctx)
	switch {
	case err != nil:
		return err
	case s == nil:
		return errors.New("no move is under way")
	}
	list := steps[s.Direction]
	if i := indexOf(list, s.Step); i < 0 || list[i].final {
		return fmt.Errorf("step %s cannot be undone; continue the move, and move back afterwards", s.Step)
	}
	m.Direction = s.Direction
	if indexOf(list, s.Step) > 0 { // in the first step, definitions can be missing, and the source still serves clients
		if err := m.reconnect(ctx, s); err != nil {
			return err
		}
	}
	if err := m.deleteCopied(ctx, s); err != nil {
		return err
	}
	if err := m.unfreeze(ctx); err != nil {
		return err
	}
	m.report("The move %s is undone", s.Direction)
	return m.forget(ctx)
}

// deleteCopied deletes the copies and their definitions, and restores the priorities of the APIServices.
func (m *Mover) deleteCopied(ctx context.Context, s *state) error {
	for _, r := range s.Resources {
		if s.Direction == ToHost {
			if err := ignoreNotFound(m.checkCreated(ctx, r)); err != nil {
				return err
			}
		}
		copies, err := m.destination(s.Direction, r).digests(ctx, s.Direction)
		if ignoreNotFound(err) != nil {
			return err
		}
		if err := m.deleteCopies(ctx, s.Direction, r, copies); err != nil {
			return err
		}
	}
	if s.Direction == ToExtension {
		return m.deleteDefinitions(ctx, m.extension, s)
	}
	return errors.Join(m.deleteDefinitions(ctx, m.host, s), m.unregisterAccess(ctx), m.restorePriorities(ctx, s))
}
