package storage

import (
	"context"
	"errors"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// ErrGuard means that the path which a creation depends on is at another revision.
var ErrGuard = errors.New("the path that the creation depends on has changed")

// Guard is a path that a creation depends on, with its expected ModRevision.
type Guard struct {
	Path     string
	Revision int64
}

// CreateGuarded creates a path like Create, without a TTL, but only while the guard's path has the guard's revision.
// Otherwise it fails with ErrGuard.
func (s *Store) CreateGuarded(ctx context.Context, path string, data []byte, guard Guard) (int64, error) {
	if s.shim.Load() {
		return s.createThenCheck(ctx, path, data, guard)
	}
	revision, err := s.create(ctx, path, data, 0, s.at(path, 0), s.at(guard.Path, guard.Revision))
	switch {
	case isUnsupported(err):
		return s.createThenCheck(ctx, path, data, guard)
	case !errors.Is(err, ErrExists):
		return revision, err
	}
	if current, checkErr := s.revisionOf(ctx, guard.Path); checkErr != nil || current != guard.Revision {
		return 0, fmt.Errorf("create %s: %w", path, errors.Join(ErrGuard, checkErr))
	}
	return 0, err
}

// createThenCheck does the same as CreateGuarded for a shim whose transactions have only one condition: it creates
// the path, then checks the guard, and deletes the path again if the guard has changed. Other clients may see the
// object in between.
func (s *Store) createThenCheck(ctx context.Context, path string, data []byte, guard Guard) (int64, error) {
	revision, err := s.Create(ctx, path, data, 0)
	if err != nil {
		return 0, err
	}
	current, err := s.revisionOf(ctx, guard.Path)
	if err == nil && current == guard.Revision {
		return revision, nil
	}
	_, undoErr := s.Delete(context.WithoutCancel(ctx), path, revision)
	var changed *ConflictError
	if errors.As(undoErr, &changed) {
		undoErr = nil // another client has seen the object and changed or deleted it
	}
	return 0, fmt.Errorf("create %s: %w", path, errors.Join(ErrGuard, err, undoErr))
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
