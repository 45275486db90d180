package storage

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/utils/clock"
)

const (
	// dropPause is the time after which a transaction that raft has dropped is sent again.
	dropPause = 5 * time.Millisecond
	// maxDrops bounds the number of times that a dropped transaction is sent again, over at least two seconds.
	maxDrops = 400
	// barrierKey is an etcd key outside of all prefixes. Creations depend on its ModRevision while writes are
	// repeated.
	barrierKey = "quorate.dev/handover"
	// barrierTimeout bounds one write of barrierKey, which a change of the leader may lose too.
	barrierTimeout = time.Second
	// attemptTimeout is the time for which etcd waits for a lost transaction. It also bounds one read of the events.
	attemptTimeout = 7 * time.Second
	// handoverGrace is the time that a new leader gets to commit the writes which its predecessor has replicated.
	handoverGrace = 200 * time.Millisecond
	// maxRepeats bounds the number of times that a write is repeated. A write waits for at most attemptTimeout after its
	// last attempt, so that only a member that cannot keep a leader reaches this bound.
	maxRepeats = 16
)

// RepeatLostWrites sends writes again if etcd has not responded to them handoverGrace after the leader has changed,
// until ctx ends; see the package documentation. A write whose repetition is lost at the next change of the leader is
// repeated again. changed returns a channel that is closed at the next change of the leader. The store must use the
// member of this process, whose responses arrive in the order in which etcd applies the writes. Writes that were sent
// before the call are not repeated.
func (s *Store) RepeatLostWrites(ctx context.Context, changed func() <-chan struct{}, clock clock.Clock) {
	s.inFlight.enable()
	for next := changed(); ; {
		select {
		case <-ctx.Done():
			return
		case <-next:
		}
		next = changed()
		creations, others := s.inFlight.list()
		outdated := s.barrier.Load()
		select {
		case <-ctx.Done():
			return
		case <-clock.After(handoverGrace):
		}
		s.inFlight.repeat(others, outdated)
		untilNext, end := untilClosed(ctx, next)
		s.repeatCreations(untilNext, creations, outdated)
		end()
	}
}

// repeatCreations raises the barrier above a revision, and then repeats the creations that are still in flight. A
// creation that was applied is not repeated: it succeeds. repeatCreations gives up when ctx ends.
func (s *Store) repeatCreations(ctx context.Context, numbers []int, outdated int64) {
	var barrier int64
	needed := func() bool { return s.inFlight.mayRepeat(numbers) }
	retryWhile(ctx, needed, func() (err error) {
		barrier, err = s.raiseBarrier(ctx, outdated)
		return err
	})
	retryWhile(ctx, needed, func() error {
		applied, err := s.applied(ctx, s.inFlight.find(numbers), barrier)
		switch {
		case err == nil:
			s.inFlight.complete(applied)
			s.inFlight.repeat(numbers, barrier)
		case errors.Is(err, ErrCompacted):
			return nil // the outcome of the creations stays unknown
		}
		return err
	})
}

// untilClosed returns a context that ends when a channel is closed, or with ctx.
func untilClosed(ctx context.Context, closed <-chan struct{}) (context.Context, context.CancelFunc) {
	ctx, end := context.WithCancel(ctx)
	go func() {
		defer end()
		select {
		case <-closed:
		case <-ctx.Done():
		}
	}()
	return ctx, end
}

// retryWhile calls attempt until it succeeds, needed returns false, or ctx ends. The delay between calls grows up to
// barrierTimeout, because a cause such as a full database may last.
func retryWhile(ctx context.Context, needed func() bool, attempt func() error) {
	for delay := dropPause; ctx.Err() == nil && needed() && attempt() != nil; delay = min(2*delay, barrierTimeout) {
		select {
		case <-ctx.Done():
		case <-time.After(delay):
		}
	}
}

// raiseBarrier writes barrierKey unless its revision is above outdated, and returns the revision. Creations that depend
// on outdated, or on an earlier revision, and have had no effect fail from then on. All replicas raise the barrier
// after a change of the leader: if each of them wrote barrierKey, it would make the repeated creations of the others
// fail.
func (s *Store) raiseBarrier(ctx context.Context, outdated int64) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, barrierTimeout)
	defer cancel()
	response, err := s.client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(barrierKey), "<", outdated+1)).
		Then(clientv3.OpPut(barrierKey, "")).Else(clientv3.OpGet(barrierKey, clientv3.WithKeysOnly())).Commit()
	if err != nil {
		return 0, err
	}
	barrier := response.Header.Revision
	if !response.Succeeded {
		barrier = barrierIn(response)
	}
	s.observe(response.Header.Revision)
	s.observeBarrier(barrier)
	return barrier, nil
}

// barrierIn returns the ModRevision of barrierKey in the response to a transaction whose last operation has read the
// key, or 0 if the key does not exist.
func barrierIn(response *clientv3.TxnResponse) int64 {
	last := response.Responses[len(response.Responses)-1]
	if kvs := last.GetResponseRange().Kvs; len(kvs) == 1 {
		return kvs[0].ModRevision
	}
	return 0
}

// observeBarrier records a revision of barrierKey.
func (s *Store) observeBarrier(revision int64) { raise(&s.barrier, revision) }

// observe records the revision of a response of etcd.
func (s *Store) observe(revision int64) { raise(&s.observed, revision) }

// raise stores a value unless a greater one is stored. Revisions never decrease, but responses may be observed in
// another order than their revisions.
func raise(stored *atomic.Int64, value int64) {
	for {
		known := stored.Load()
		if value <= known || stored.CompareAndSwap(known, value) {
			return
		}
	}
}

// creation identifies a creation among the events of etcd.
type creation struct {
	key []byte // full key
	// value is the encrypted value. Only another import of the same object can have the same value: each object has a UID.
	value []byte
	after int64 // a revision of etcd before the first attempt
}

// inFlight holds the writes whose outcome is unknown. Invariant: a write is removed, and not repeated from then on,
// when an attempt has succeeded, when all attempts have responses, when the last attempt of a creation has a certain
// outcome, or when the events show that a creation has been applied.
type inFlight struct {
	mu     sync.Mutex
	last   int
	writes map[int]*write // by number; nil: writes are not repeated
}

// write is a write without a response. A creation is repeated only after the barrier has been raised.
type write struct {
	*creation // nil: an update or deletion
	// repeat makes the attempt with a number, counted from 1. The sends of the attempt of a creation depend on the given
	// revision of the barrier.
	repeat func(attempt int, barrier int64)
	// complete ends the write with success: an attempt was applied, and its response is lost. attempt is a number after
	// the numbers of all attempts. complete does not block.
	complete func(attempt int, header *etcdserverpb.ResponseHeader)
	number   int
	repeats  int // number of times that the write was repeated; complete counts as one
}

func (f *inFlight) enabled() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.writes != nil
}

func (f *inFlight) enable() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.writes == nil {
		f.writes = map[int]*write{}
	}
}

// add adds a write. While writes are not repeated, add does nothing.
func (f *inFlight) add(w *write) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.writes == nil {
		return
	}
	f.last++
	w.number = f.last
	f.writes[w.number] = w
}

func (f *inFlight) remove(w *write) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.writes, w.number)
}

// removeUnlessRepeated removes a write unless it has been repeated more often than the given number of times. It
// reports whether it has removed the write.
func (f *inFlight) removeUnlessRepeated(w *write, times int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if w.repeats > times {
		return false
	}
	delete(f.writes, w.number)
	return true
}

// list returns the numbers of the creations, and the numbers of all other writes.
func (f *inFlight) list() (creations, others []int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for number, w := range f.writes {
		if w.creation != nil {
			creations = append(creations, number)
		} else {
			others = append(others, number)
		}
	}
	return creations, others
}

// find returns the writes with the given numbers that are still in flight.
func (f *inFlight) find(numbers []int) []*write {
	f.mu.Lock()
	defer f.mu.Unlock()
	var writes []*write
	for _, number := range numbers {
		if w, present := f.writes[number]; present {
			writes = append(writes, w)
		}
	}
	return writes
}

// complete removes the creations that were applied, and ends them with success.
func (f *inFlight) complete(applied map[*write]*etcdserverpb.ResponseHeader) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for w, header := range applied {
		if _, present := f.writes[w.number]; present {
			delete(f.writes, w.number)
			w.repeats++
			w.complete(w.repeats, header)
		}
	}
}

// mayRepeat reports whether repeat would send any of the given writes.
func (f *inFlight) mayRepeat(numbers []int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.ContainsFunc(numbers, func(number int) bool {
		w, present := f.writes[number]
		return present && w.repeats < maxRepeats
	})
}

// repeat sends the given writes again, each in a separate goroutine. It skips writes that are no longer in flight, or
// have been repeated maxRepeats times.
func (f *inFlight) repeat(numbers []int, barrier int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, number := range numbers {
		if w, present := f.writes[number]; present && w.repeats < maxRepeats {
			w.repeats++
			go w.repeat(w.repeats, barrier)
		}
	}
}

// outcome is the result of a transaction.
type outcome struct {
	response *clientv3.TxnResponse
	err      error
	barrier  int64 // ModRevision of barrierKey that a creation depended on
	attempt  int   // 0 for the first attempt
	decides  bool  // the outcome of the write is the outcome of this attempt, whatever the other attempts return
}

func (o outcome) succeeded() bool { return o.err == nil && o.response.Succeeded }

// isUncertain reports whether the transaction may have been applied, or may be applied later, although it returned an
// error.
func (o outcome) isUncertain() bool { return errors.Is(classifyWrite(o.err), ErrUncertain) }

// transact commits a transaction once.
func (s *Store) transact(txn clientv3.Txn) outcome {
	response, err := txn.Commit()
	if err == nil {
		s.observe(response.Header.GetRevision())
	}
	return outcome{response: response, err: err}
}

// commit runs an operation in a transaction if all conditions hold, and otherwise the alternative, if any. The
// conditions must never hold again once the operation has run, because the transaction may be sent several times.
func (s *Store) commit(
	ctx context.Context, conditions []clientv3.Cmp, operation clientv3.Op, alternative ...clientv3.Op,
) (*clientv3.TxnResponse, error) {
	o := s.run(ctx, nil, func(ctx context.Context, _ int64) outcome {
		return s.transact(s.client.Txn(ctx).If(conditions...).Then(operation).Else(alternative...))
	})
	return o.response, o.err
}

// commitCreation runs an operation in a transaction if all conditions hold, and otherwise the alternative, if any.
// Unlike for commit, the conditions may hold again after the operation has run.
func (s *Store) commitCreation(
	ctx context.Context, conditions []clientv3.Cmp, operation clientv3.Op, alternative ...clientv3.Op,
) (*clientv3.TxnResponse, error) {
	if !s.inFlight.enabled() { // not commit, which would repeat the write without a barrier once that is enabled
		o := untilAccepted(ctx, func() outcome {
			return s.transact(s.client.Txn(ctx).If(conditions...).Then(operation).Else(alternative...))
		})
		return o.response, o.err
	}
	alternative = append(slices.Clone(alternative), clientv3.OpGet(barrierKey, clientv3.WithKeysOnly()))
	for {
		created := &creation{key: operation.KeyBytes(), value: operation.ValueBytes(), after: s.observed.Load()}
		o := s.run(ctx, created, func(ctx context.Context, barrier int64) outcome {
			all := append(slices.Clone(conditions), clientv3.Compare(clientv3.ModRevision(barrierKey), "=", barrier))
			o := s.transact(s.client.Txn(ctx).If(all...).Then(operation).Else(alternative...))
			o.barrier = barrier
			return o
		})
		if o.err != nil || o.succeeded() {
			return o.response, o.err
		}
		switch outdated, err := s.isOutdated(ctx, o); {
		case err != nil:
			return nil, err
		case !outdated:
			return o.response, nil
		}
	}
}

// isOutdated reports whether a creation failed because barrierKey has another revision than the one on which the
// creation depended. It records the current revision, so that the creation can be sent again. If a user has deleted
// barrierKey, isOutdated writes it again.
func (s *Store) isOutdated(ctx context.Context, o outcome) (bool, error) {
	current := barrierIn(o.response)
	s.observeBarrier(current)
	if current < o.barrier {
		_, err := s.raiseBarrier(ctx, s.barrier.Load())
		return true, err
	}
	return current != o.barrier, nil
}

// run sends a transaction, and again whenever RepeatLostWrites demands it. created is nil for an update or deletion.
//
// Invariants of a creation: all sends of one attempt depend on the same revision of the barrier. The first attempt uses
// a revision from before the write was added to inFlight. RepeatLostWrites raises the barrier above the revisions of
// all earlier attempts, and reads the events up to it, before it makes the next attempt; none of the earlier attempts
// has had an effect then, or will have one.
func (s *Store) run(
	ctx context.Context, created *creation, send func(ctx context.Context, barrier int64) outcome,
) outcome {
	attempts, abandon := context.WithCancel(ctx)
	defer abandon()
	repeated := make(chan outcome, maxRepeats+1)
	w := &write{creation: created}
	w.complete = func(attempt int, header *etcdserverpb.ResponseHeader) {
		response := &clientv3.TxnResponse{Header: header, Succeeded: true}
		repeated <- outcome{response: response, attempt: attempt, decides: true}
		abandon()
	}
	w.repeat = func(attempt int, barrier int64) {
		next := untilAccepted(attempts, func() outcome { return send(attempts, barrier) })
		next.attempt = attempt
		// A creation is repeated after it is certain that no earlier attempt has an effect, so that the last attempt decides.
		// Of the attempts of another write, only one that has succeeded decides.
		next.decides = next.succeeded() ||
			created != nil && !next.isUncertain() && s.inFlight.removeUnlessRepeated(w, attempt)
		if next.succeeded() {
			s.inFlight.remove(w)
		}
		repeated <- next
		if next.decides {
			abandon()
		}
	}
	barrier := s.barrier.Load()
	s.inFlight.add(w)
	o := untilAccepted(attempts, func() outcome { return send(attempts, barrier) })
	for answered := 0; !o.succeeded() && !s.inFlight.removeUnlessRepeated(w, answered); answered++ {
		o = decisive(o, <-repeated)
	}
	s.inFlight.remove(w)
	return o
}

// decisive returns the outcome that tells more about a transaction: the outcome of an attempt that decides, or has
// succeeded, or else an uncertain outcome, or else the outcome of the later attempt.
func decisive(a, b outcome) outcome {
	switch {
	case b.decides:
		return b
	case a.decides || a.succeeded() || !b.succeeded() && a.isUncertain():
		return a
	case b.succeeded() || b.isUncertain() || b.attempt > a.attempt:
		return b
	}
	return a
}

// untilAccepted sends a transaction again as long as raft drops it. A dropped transaction has not been applied.
func untilAccepted(ctx context.Context, send func() outcome) outcome {
	for n := 0; ; n++ {
		sent := send()
		if sent.err == nil || n == maxDrops || !isDropped(sent.err) {
			return sent
		}
		select {
		case <-ctx.Done():
			return sent
		case <-time.After(dropPause):
		}
	}
}
