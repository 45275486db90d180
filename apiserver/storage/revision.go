package storage

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// revisionTimeout bounds one read. The contexts of most callers end earlier.
const revisionTimeout = 10 * time.Second

// Revision returns the current revision of etcd. It is linearizable: not below that of any write that completed
// before the call. Concurrent callers share one read (a ReadIndex, for an embedded member).
func (s *Store) Revision(ctx context.Context) (int64, error) {
	q := s.revisions.join()
	select {
	case <-q.done:
	case <-ctx.Done():
		return 0, fmt.Errorf("reading the current revision: %w", ctx.Err())
	}
	if q.err != nil {
		return 0, fmt.Errorf("reading the current revision: %w", q.err)
	}
	return q.revision, nil
}

// readRevision reads the prefix as a key, which never exists. The revision is in the response header.
func (s *Store) readRevision(ctx context.Context) (int64, error) {
	response, err := s.get(ctx, s.prefix)
	switch {
	case ctx.Err() != nil:
		return 0, fmt.Errorf("%w: no response within %v", ErrUnavailable, revisionTimeout)
	case err != nil:
		return 0, classify(err)
	}
	return response.Header.Revision, nil
}

// revisionRead is one read, shared by all callers that joined it before it was sent.
type revisionRead struct {
	done     chan struct{} // closed when the fields below are set
	revision int64
	err      error
}

// revisionReader batches reads of the current revision: while one is in flight, callers join the next. They cannot
// join the one in flight, because it may have been served before a write that completed before the call.
type revisionReader struct {
	read func(context.Context) (int64, error)

	mu      sync.Mutex
	next    *revisionRead // not sent yet; nil: no caller waits for it
	running bool          // run is active and will send next
}

// join returns a read that has not been sent yet.
func (r *revisionReader) join() *revisionRead {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.next == nil {
		r.next = &revisionRead{done: make(chan struct{})}
	}
	joined := r.next
	if !r.running {
		r.running = true
		go r.run()
	}
	return joined
}

// run sends reads until no caller waits for one. It runs in the background, since callers may leave early.
func (r *revisionReader) run() {
	for current := r.take(); current != nil; current = r.take() {
		ctx, cancel := context.WithTimeout(context.Background(), revisionTimeout)
		current.revision, current.err = r.read(ctx)
		cancel()
		close(current.done)
	}
}

// take returns the read to send now. Later callers join another.
func (r *revisionReader) take() *revisionRead {
	r.mu.Lock()
	defer r.mu.Unlock()
	current := r.next
	r.next = nil
	r.running = current != nil
	return current
}
