package storage

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/utils/clock"
)

const (
	// dropPause is the time after which a dropped transaction is sent again.
	dropPause = 5 * time.Millisecond
	// maxDrops bounds how often it is, to some seconds.
	maxDrops = 400
	// handoverGrace is the time for a new leader to commit what its predecessor has replicated.
	handoverGrace = 200 * time.Millisecond
)

// A leader that hands over drops the proposals that it receives. One of its own clients gets an error; a proposal from a
// follower, or one that a leader received before it crashed, is lost without notice, and etcd waits for it for seven
// seconds. A transaction that depends on the revision of its key can be sent again, even if it is not lost: only
// for one of the two the condition holds.

// RepeatLostWrites sends writes again that are still unanswered some time after the leader has changed, until ctx ends.
// changed returns a channel that is closed at the next change. The store must use the member of this process: its answers
// arrive in the order in which etcd applied the writes. Writes that were sent before the call are not repeated.
func (s *Store) RepeatLostWrites(ctx context.Context, changed func() <-chan struct{}, clock clock.Clock) {
	s.inFlight.enable()
	for next := changed(); ; {
		select {
		case <-ctx.Done():
			return
		case <-next:
		}
		next = changed()
		unanswered := s.inFlight.list()
		select {
		case <-ctx.Done():
			return
		case <-clock.After(handoverGrace):
		}
		s.inFlight.repeat(unanswered)
	}
}

// inFlight has the writes that etcd has not answered.
type inFlight struct {
	mu     sync.Mutex
	last   int
	writes map[int]func() // repeat a write, by number; nil: writes are not repeated
}

func (f *inFlight) enable() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.writes == nil {
		f.writes = map[int]func(){}
	}
}

// add adds a write. answered removes it, and reports false if it has been repeated.
func (f *inFlight) add(repeat func()) (answered func() bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.writes == nil {
		return func() bool { return true }
	}
	f.last++
	number := f.last
	f.writes[number] = repeat
	return func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		_, present := f.writes[number]
		delete(f.writes, number)
		return present
	}
}

// list returns the numbers of the writes.
func (f *inFlight) list() []int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Keys(f.writes))
}

// repeat repeats those of the numbered writes that are still unanswered, once each.
func (f *inFlight) repeat(numbers []int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, number := range numbers {
		if repeat, present := f.writes[number]; present {
			delete(f.writes, number)
			go repeat()
		}
	}
}

// outcome is that of a transaction.
type outcome struct {
	response *clientv3.TxnResponse
	err      error
}

func (o outcome) succeeded() bool { return o.err == nil && o.response.Succeeded }

// commit runs the operation if all conditions hold, and the alternative, if any, otherwise. The conditions must be false
// for ever once the operation has run.
func (s *Store) commit(
	ctx context.Context, conditions []clientv3.Cmp, operation clientv3.Op, alternative ...clientv3.Op,
) (*clientv3.TxnResponse, error) {
	send := func(ctx context.Context) outcome {
		return untilAccepted(ctx, func() outcome {
			response, err := s.client.Txn(ctx).If(conditions...).Then(operation).Else(alternative...).Commit()
			return outcome{response, err}
		})
	}
	firstContext, abandon := context.WithCancel(ctx)
	defer abandon()
	repeated := make(chan outcome, 1)
	answered := s.inFlight.add(func() {
		second := send(ctx)
		repeated <- second
		if second.succeeded() {
			abandon() // the first transaction is lost
		}
	})
	first := send(firstContext)
	if answered() || first.succeeded() {
		return first.response, first.err
	}
	if second := <-repeated; second.succeeded() {
		return second.response, nil
	}
	return first.response, first.err
}

// untilAccepted repeats a transaction that raft drops. It has not been applied.
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
