package storage

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// revisionTimeout bounds one read of the revision. The contexts of most callers end earlier.
const revisionTimeout = 10 * time.Second

// everyPath is the path with which requests are measured that concern all resources: their metrics have empty labels.
const everyPath = ""

// Revision returns the current revision of etcd, not less than the revision of any write that completed before the
// call: the read is linearizable. Concurrent callers share one read (a ReadIndex, in an embedded member). It is the
// counterpart of etcd3's GetCurrentResourceVersion.
func (s *Store) Revision(ctx context.Context) (int64, error) {
	q := s.revisions.join()
	select {
	case <-q.done:
	case <-ctx.Done():
		return 0, fmt.Errorf("read the current revision: %w", ctx.Err())
	}
	if q.err != nil {
		return 0, fmt.Errorf("read the current revision: %w", q.err)
	}
	return q.revision, nil
}

// readRevision reads the store's prefix as a key, which never exists. The response header has the revision.
func (s *Store) readRevision(ctx context.Context) (int64, error) {
	began := s.metrics.start()
	response, err := s.get(ctx, s.prefix)
	s.metrics.observe(ctx, "getCurrentResourceVersion", everyPath, began, err)
	switch {
	case ctx.Err() != nil:
		return 0, fmt.Errorf("%w: no response within %v", ErrUnavailable, revisionTimeout)
	case err != nil:
		return 0, classify(err)
	}
	return response.Header.Revision, nil
}

// revisionRead is one read of the revision, shared by all callers that joined it before it was sent.
type revisionRead struct {
	done     chan struct{} // closed when the fields below are set
	revision int64
	err      error
}

// revisionReader batches reads of the current revision: while one read is in flight, callers join the next read. They
// cannot join the read in flight, because etcd may have processed it before a write that completed before the call. At
// most one read is in flight; a caller waits for at most two reads.
type revisionReader struct {
	read func(context.Context) (int64, error)

	mu      sync.Mutex
	next    *revisionRead // read that has not been sent; nil: no caller waits for it
	running bool          // a goroutine runs run, which will send next
}

// join returns the read that will be sent next, and starts run if it is not running.
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

// run sends reads until no caller waits. It has a separate goroutine and context, because callers may leave early.
func (r *revisionReader) run() {
	for current := r.take(); current != nil; current = r.take() {
		ctx, cancel := context.WithTimeout(context.Background(), revisionTimeout)
		current.revision, current.err = r.read(ctx)
		cancel()
		close(current.done)
	}
}

// take returns the read to send now, nil if run must end. Later callers join another read.
func (r *revisionReader) take() *revisionRead {
	r.mu.Lock()
	defer r.mu.Unlock()
	current := r.next
	r.next = nil
	r.running = current != nil
	return current
}
