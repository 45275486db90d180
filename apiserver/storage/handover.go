package storage

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

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
	// attemptTimeout is the time for which etcd waits for a transaction that is lost.
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
		select {
		case <-ctx.Done():
			return
		case <-clock.After(handoverGrace):
		}
		s.inFlight.repeat(others, s.barrier.Load())
		if s.raiseBarrierWhile(ctx, next, func() bool { return s.inFlight.has(creations) }) {
			s.inFlight.repeat(creations, s.barrier.Load())
		}
	}
}

// raiseBarrierWhile raises the barrier. After an error, for instance because the database is full, it tries again
// with a growing delay. It returns false when the barrier is no longer needed, the leader changes again, or ctx ends.
func (s *Store) raiseBarrierWhile(ctx context.Context, changed <-chan struct{}, needed func() bool) bool {
	for delay := dropPause; needed(); delay = min(2*delay, barrierTimeout) {
		if s.raiseBarrier(ctx) == nil {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-changed:
			return false
		case <-time.After(delay):
		}
	}
	return false
}

// raiseBarrier writes barrierKey, so that creations which were sent before and have had no effect fail.
func (s *Store) raiseBarrier(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, barrierTimeout)
	defer cancel()
	response, err := s.client.Put(ctx, barrierKey, "")
	if err == nil {
		s.barrier.Store(response.Header.Revision)
	}
	return err
}

// inFlight has the writes to which etcd has not responded. Invariant: a write is removed when the first attempt is
// answered, and is not repeated from then on.
type inFlight struct {
	mu     sync.Mutex
	last   int
	writes map[int]*write // by number; nil: writes are not repeated
}

// write is a write without a response. A creation is repeated only after the barrier has been raised.
type write struct {
	creation bool
	// repeat makes the attempt with a number, counted from 1. The sends of the attempt depend on the given revision of
	// the barrier.
	repeat  func(number int, barrier int64)
	repeats int // number of the last attempt that repeat has made
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

// add adds a write. It returns the function answered, which must be called when the first attempt is answered: answered
// removes the write, and returns the number of its repetitions. While writes are not repeated, add does nothing.
func (f *inFlight) add(w *write) (answered func() int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.writes == nil {
		return func() int { return 0 }
	}
	f.last++
	number := f.last
	f.writes[number] = w
	return func() int {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.writes, number)
		return w.repeats
	}
}

// list returns the numbers of the creations, and the numbers of all other writes.
func (f *inFlight) list() (creations, others []int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for number, w := range f.writes {
		if w.creation {
			creations = append(creations, number)
		} else {
			others = append(others, number)
		}
	}
	return creations, others
}

// has reports whether any of the given writes is still in flight.
func (f *inFlight) has(numbers []int) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.ContainsFunc(numbers, func(number int) bool {
		_, present := f.writes[number]
		return present
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
}

func (o outcome) succeeded() bool { return o.err == nil && o.response.Succeeded }

// isUncertain reports whether the transaction may have been applied, or may be applied later, although it returned an
// error.
func (o outcome) isUncertain() bool { return errors.Is(classifyWrite(o.err), ErrUncertain) }

// commit runs an operation in a transaction if all conditions hold, and otherwise the alternative, if any. The
// conditions must never hold again once the operation has run, because the transaction may be sent several times.
func (s *Store) commit(
	ctx context.Context, conditions []clientv3.Cmp, operation clientv3.Op, alternative ...clientv3.Op,
) (*clientv3.TxnResponse, error) {
	o, _ := s.run(ctx, false, func(ctx context.Context, _ int64) outcome {
		response, err := s.client.Txn(ctx).If(conditions...).Then(operation).Else(alternative...).Commit()
		return outcome{response: response, err: err}
	})
	return o.response, o.err
}

// commitCreation runs an operation in a transaction if all conditions hold. Unlike for commit, the conditions may
// hold again after the operation has run.
func (s *Store) commitCreation(
	ctx context.Context, conditions []clientv3.Cmp, operation clientv3.Op,
) (*clientv3.TxnResponse, error) {
	if !s.inFlight.enabled() {
		return s.commit(ctx, conditions, operation)
	}
	for {
		o, pending := s.run(ctx, true, func(ctx context.Context, barrier int64) outcome {
			all := append(slices.Clone(conditions), clientv3.Compare(clientv3.ModRevision(barrierKey), "=", barrier))
			response, err :=
				s.client.Txn(ctx).If(all...).Then(operation).Else(clientv3.OpGet(barrierKey, clientv3.WithKeysOnly())).Commit()
			return outcome{response: response, err: err, barrier: barrier}
		})
		switch {
		case o.err != nil:
			return nil, o.err
		case o.succeeded() && pending:
			return o.response, s.endOtherAttempts(ctx)
		case o.succeeded() || !s.isOutdated(o):
			return o.response, nil
		}
	}
}

// endOtherAttempts raises the barrier so that later attempts of a creation fail after one has succeeded. Its error is
// always the error of a context, which callers report as an unknown outcome although the object is stored.
func (s *Store) endOtherAttempts(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	if s.raiseBarrierWhile(ctx, nil, func() bool { return true }) {
		return nil
	}
	return ctx.Err()
}

// isOutdated reports whether a creation has failed because the barrier was raised since, by this process or another
// one. It takes over the new revision of the barrier, so that the creation can be sent again.
func (s *Store) isOutdated(o outcome) bool {
	var current int64
	if kvs := o.response.Responses[0].GetResponseRange().Kvs; len(kvs) == 1 {
		current = kvs[0].ModRevision
	}
	if current == o.barrier {
		return false
	}
	s.barrier.Store(current)
	return true
}

// run sends a transaction, and again whenever RepeatLostWrites demands it. pending means that an attempt has succeeded
// and that a later one may still have an effect.
//
// Invariants: all sends of one attempt depend on the same revision of the barrier. The first attempt uses a revision
// from before the write was added to inFlight, and each repetition the revision of the barrier that RepeatLostWrites
// has raised just before; an attempt that succeeds therefore shows that no earlier attempt will.
func (s *Store) run(
	ctx context.Context, creation bool, send func(ctx context.Context, barrier int64) outcome,
) (o outcome, pending bool) {
	attempts, abandon := context.WithCancel(ctx)
	defer abandon()
	repeated := make(chan outcome, maxRepeats)
	barrier := s.barrier.Load()
	answered := s.inFlight.add(&write{creation: creation, repeat: func(number int, barrier int64) {
		next := untilAccepted(attempts, func() outcome { return send(attempts, barrier) })
		next.attempt = number
		repeated <- next
		if next.succeeded() {
			abandon() // the other attempts are lost, have no effect, or are pending
		}
	}})
	first := untilAccepted(attempts, func() outcome { return send(attempts, barrier) })
	repeats := answered()
	if repeats == 0 {
		return first, false
	}
	o = decisive(first, repeated, repeats)
	return o, o.succeeded() && o.attempt < repeats
}

// decisive returns the outcome of a transaction whose first attempt was repeated: the outcome of an attempt that has
// succeeded, or else an uncertain outcome, or else the outcome of the last attempt. It waits for outcomes until an
// attempt has succeeded.
func decisive(first outcome, repeated <-chan outcome, repeats int) outcome {
	best := first
	for n := 0; n < repeats && !best.succeeded(); n++ {
		next := <-repeated
		if next.succeeded() || !best.isUncertain() && (next.isUncertain() || next.attempt > best.attempt) {
			best = next
		}
	}
	return best
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
