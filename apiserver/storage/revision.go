package storage

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// questionTimeout bounds one question for the current revision; callers usually give up earlier by themselves.
const questionTimeout = 10 * time.Second

// Revision returns the current revision of the store. It is linearizable: at least that of every write that had
// finished when it was called. Callers that wait at the same moment share one question to etcd.
func (s *Store) Revision(ctx context.Context) (int64, error) {
	q := s.questions.join()
	select {
	case <-q.answered:
	case <-ctx.Done():
		return 0, fmt.Errorf("asking for the current revision: %w", ctx.Err())
	}
	if q.err != nil {
		return 0, fmt.Errorf("asking for the current revision: %w", q.err)
	}
	return q.revision, nil
}

// askRevision reads a key that is never there: the answer's header carries the revision.
func (s *Store) askRevision(ctx context.Context) (int64, error) {
	response, err := s.client.Get(ctx, s.prefix)
	if ctx.Err() != nil {
		return 0, fmt.Errorf("%w: no answer within %v", ErrUnavailable, questionTimeout)
	}
	if err != nil {
		return 0, classify(err)
	}
	return response.Header.Revision, nil
}

// question is asked once for everybody who joined it before it was sent.
type revisionRead struct {
	answered chan struct{}
	revision int64
	err      error
}

// questions keeps one question on its way and collects, meanwhile, the callers of the next: an answer is
// only good for callers who came before the question was sent.
type revisionReads struct {
	ask func(context.Context) (int64, error)

	mu    sync.Mutex
	next  *revisionRead
	going bool
}

// join returns a question that has not been sent yet.
func (q *revisionReads) join() *revisionRead {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.next == nil {
		q.next = &revisionRead{answered: make(chan struct{})}
	}
	joined := q.next
	if !q.going {
		q.going = true
		go q.run()
	}
	return joined
}

// run sends questions until nobody waits.
func (q *revisionReads) run() {
	for current := q.take(); current != nil; current = q.take() {
		ctx, cancel := context.WithTimeout(context.Background(), questionTimeout)
		current.revision, current.err = q.ask(ctx)
		cancel()
		close(current.answered)
	}
}

// take returns the question to send now; callers from here on join another.
func (q *revisionReads) take() *revisionRead {
	q.mu.Lock()
	defer q.mu.Unlock()
	current := q.next
	q.next = nil
	q.going = current != nil
	return current
}
