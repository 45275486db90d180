package storage

import (
	"context"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// ErrGuard means that a path which a creation depends on is at another revision.
var ErrGuard = errors.New("a path that the creation depends on has changed")

// Guard is a path that a creation depends on, with its expected ModRevision.
type Guard struct {
	Path     string
	Revision int64
}

// GuardsAreAtomic reports whether etcd certainly checks the guards in the transaction of the creation. It is false for
// a shim, and for a remote store until CheckFeatures has recognized etcd.
func (s *Store) GuardsAreAtomic() bool {
	select {
	case <-s.featuresKnown:
		return !s.shim.Load()
	default:
		return false
	}
}

// CreateGuarded creates a path like Create, but only while the path of each guard has the guard's revision. It fails
// with ErrExists if the path exists, and otherwise with ErrGuard if a guard has changed. With a shim, the guards are
// checked after the creation, which is undone if a guard has changed.
func (s *Store) CreateGuarded(
	ctx context.Context, path string, data []byte, ttl time.Duration, guards ...Guard,
) (int64, error) {
	if s.shim.Load() {
		return s.createThenCheck(ctx, path, data, ttl, guards)
	}
	conditions := []clientv3.Cmp{s.at(path, 0)}
	for _, guard := range guards {
		conditions = append(conditions, s.at(guard.Path, guard.Revision))
	}
	revision, err := s.create(ctx, path, data, ttl, conditions...)
	if isUnsupported(err) {
		return s.createThenCheck(ctx, path, data, ttl, guards)
	}
	return revision, err
}

// createThenCheck does the same as CreateGuarded for a shim: it creates the path, then checks the guards, and deletes
// the path again if a guard has changed. Other clients may see the object in between. If a client has changed or
// deleted the object, or the deletion fails, the outcome is unknown.
func (s *Store) createThenCheck(
	ctx context.Context, path string, data []byte, ttl time.Duration, guards []Guard,
) (int64, error) {
	revision, err := s.Create(ctx, path, data, ttl)
	if err != nil {
		return 0, err
	}
	guardErr := s.check(ctx, guards)
	if guardErr == nil {
		return revision, nil
	}
	if _, err := s.Delete(context.WithoutCancel(ctx), path, revision); err != nil {
		guardErr = uncertainError{errors.Join(guardErr, err)}
	}
	return 0, fmt.Errorf("create %s: %w", path, guardErr)
}

// check returns ErrGuard if a guard has changed or cannot be read.
func (s *Store) check(ctx context.Context, guards []Guard) error {
	for _, guard := range guards {
		if current, err := s.revisionOf(ctx, guard.Path); err != nil || current != guard.Revision {
			return errors.Join(ErrGuard, err)
		}
	}
	return nil
}

// revisionOf returns the ModRevision of a path, 0 if it does not exist.
func (s *Store) revisionOf(ctx context.Context, path string) (int64, error) {
	began := s.metrics.start()
	found, err := s.get(ctx, s.Key(path), clientv3.WithKeysOnly())
	s.metrics.observe(ctx, "get", path, began, err)
	if err != nil || len(found.Kvs) == 0 {
		return 0, classify(err)
	}
	return found.Kvs[0].ModRevision, nil
}
