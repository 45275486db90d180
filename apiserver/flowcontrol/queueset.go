package flowcontrol

import (
	"sync"
	"sync/atomic"
	"time"

	fq "k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing"
	"k8s.io/apiserver/pkg/util/flowcontrol/metrics"
	fcrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
	"k8s.io/apiserver/pkg/util/shufflesharding"
	"k8s.io/utils/clock"
)

// estimatedService is the assumed duration of a request until its actual one is known.
const estimatedService = 3 * time.Millisecond

// queueSet has the seats and queues of one priority level. It is upstream's queue set (fairqueuing/queueset), with sums
// that are kept instead of computed at each step; TestDecisionsOfUpstream compares them. Terms are upstream's: R, the
// virtual time, is the amount of work in seat-seconds that each busy queue has been allocated.
type queueSet struct {
	clock clock.PassiveClock
	after func(time.Duration, func()) // calls a function later, in another goroutine
	// configured is called without the lock after each change of the configuration.
	configured func(name string, set *queueSet)

	waitingGauge, executingGauge, seatsGauge metrics.RatioedGauge
	demandGauge                              metrics.Gauge

	// undesired is set if the priority level has been deleted; it remains until its requests are finished.
	undesired atomic.Bool

	mu          sync.Mutex
	queuing     fq.QueuingConfig
	dispatching fq.DispatchingConfig
	dealer      *shufflesharding.Dealer // nil without queues
	// queues may be longer than desired while the excess queues drain.
	queues    []*queue
	currentR  fcrequest.SeatSeconds
	lastSync  time.Time // of currentR
	robin     int       // index of the queue dispatched last
	busy      int       // number of busy queues
	requested int       // seats in use by, or waiting in, all queues
	enqueued  int
	executing requests

	waiting, seatsWaiting, seatsInUse, running int
	rejected, cancelled, dispatched            int

	last     virtualTimes // for metrics
	advanced [2]int       // epochs, without and with success
}

// virtualTimes are those of the last dispatch from a queue: of the level, of the request, and the smallest and largest of
// all queues, without and with a discount for the work in progress.
type virtualTimes struct {
	r, s, smallest, largest, smallestDiscounted, largestDiscounted fcrequest.SeatSeconds
}

// exempt reports whether requests are not limited.
func (s *queueSet) exempt() bool { return s.queuing.DesiredNumQueues < 0 }

// lock locks the set and advances the virtual time. The state of the queues must not change before.
func (s *queueSet) lock() time.Time {
	s.mu.Lock()
	now := s.clock.Now()
	since := now.Sub(s.lastSync)
	s.lastSync = now
	if s.busy > 0 && since > 0 {
		rate := min(float64(s.requested), float64(s.dispatching.ConcurrencyLimit)) / float64(s.busy)
		s.currentR += fcrequest.SeatsTimesDuration(rate, since)
		if s.currentR >= highR {
			s.advanceEpoch()
		}
	}
	return now
}

// The virtual time is set back by epoch before it overflows.
const (
	epoch = fcrequest.MaxSeatSeconds / 2
	highR = epoch + epoch/2
)

func (s *queueSet) advanceEpoch() {
	success := 1
	back := func(r *fcrequest.SeatSeconds) {
		if *r < epoch { // longer ago than an epoch
			success = 0
		}
		*r -= min(*r, epoch)
	}
	back(&s.currentR)
	for _, q := range s.queues {
		if !q.busy() {
			q.nextDispatchR = 0
			continue
		}
		back(&q.nextDispatchR)
		for r := q.waiting.first; r != nil; r = r.next {
			back(&r.arrivalR)
		}
	}
	s.advanced[success]++
}

// configure implements the second step of a change of the configuration. Queues that are no longer desired drain.
func (s *queueSet) configure(queuing fq.QueuingConfig, dealer *shufflesharding.Dealer, dispatching fq.DispatchingConfig) {
	now := s.lock()
	defer s.mu.Unlock()
	if queuing.DesiredNumQueues > 0 {
		for len(s.queues) < queuing.DesiredNumQueues {
			s.queues = append(s.queues, &queue{index: len(s.queues)})
		}
	} else {
		queuing.QueueLengthLimit, queuing.HandSize = s.queuing.QueueLengthLimit, s.queuing.HandSize
	}
	s.queuing, s.dealer, s.dispatching = queuing, dealer, dispatching
	places := max(queuing.QueueLengthLimit, 1)
	if queuing.DesiredNumQueues > 0 {
		places *= queuing.DesiredNumQueues
	}
	s.waitingGauge.SetDenominator(float64(places))
	s.executingGauge.SetDenominator(float64(dispatching.ConcurrencyDenominator))
	s.seatsGauge.SetDenominator(float64(dispatching.ConcurrencyDenominator))
	s.dispatch(now, nil)
}

// start dispatches a request or puts it into a queue. It reports false, and the reason, if it is rejected.
func (s *queueSet) start(r *Request, hash uint64) (reason string, ok bool) {
	now := s.lock()
	defer s.mu.Unlock()
	r.set, r.arrival, r.arrivalR = s, now, s.currentR
	r.estimateWork()
	if s.queuing.DesiredNumQueues < 1 {
		if !s.accommodates(r.maxSeats()) {
			s.rejected++
			return "concurrency-limit", false
		}
		s.execute(r, now)
		s.setDemand()
		return "", true
	}
	q := s.queues[s.deal(hash)]
	if s.seatsInUse >= s.dispatching.ConcurrencyLimit && q.waiting.length >= s.queuing.QueueLengthLimit {
		s.rejected++
		q.bound()
		return "queue-full", false
	}
	s.enqueue(r, q)
	r.place = q.waiting.length
	q.bound()
	s.dispatch(now, q)
	if !r.dispatched {
		s.setDemand()
		r.granted = make(chan struct{})
		s.waitingGauge.Add(1)
		r.counted = true
	}
	return "", true
}

// deal returns the queue of a hand whose waiting requests have the least work. The rotation avoids a bias between equal
// queues of overlapping hands.
func (s *queueSet) deal(hash uint64) int {
	var backing [16]int
	hand := s.dealer.DealIntoHand(hash, backing[:])
	offset := s.enqueued % len(hand)
	s.enqueued++
	best, least := -1, fcrequest.MaxSeatSeconds
	for i := range hand {
		index := hand[(offset+i)%len(hand)]
		work := s.queues[index].waiting.work
		if work < least {
			best, least = index, work
		}
		if work == 0 {
			break
		}
	}
	return best
}

func (s *queueSet) enqueue(r *Request, q *queue) {
	if !q.busy() {
		q.nextDispatchR = s.currentR
	}
	r.queue = q
	q.waiting.push(r)
	s.waiting++
	s.seatsWaiting += r.maxSeats()
	s.requested += r.maxSeats()
	s.count(q)
}

func (s *queueSet) dequeue(r *Request) {
	r.queue.waiting.remove(r)
	s.waiting--
	s.seatsWaiting -= r.maxSeats()
	s.requested -= r.maxSeats()
	if r.counted {
		s.waitingGauge.Add(-1)
	}
	s.count(r.queue)
}

// count updates the number of busy queues after a change of one.
func (s *queueSet) count(q *queue) {
	if busy := q.busy(); busy != q.counted {
		q.counted = busy
		if busy {
			s.busy++
		} else {
			s.busy--
		}
	}
}

// accommodates reports whether a request of so many seats can execute now. One that has more seats than the level
// executes alone.
func (s *queueSet) accommodates(seats int) bool {
	switch {
	case s.exempt():
		return true
	case seats > s.dispatching.ConcurrencyLimit:
		return s.running == 0
	}
	return s.seatsInUse+seats <= s.dispatching.ConcurrencyLimit
}

// dispatch executes waiting requests while there are seats. likely is a queue that may have all waiting requests, or nil.
func (s *queueSet) dispatch(now time.Time, likely *queue) {
	changed := false
	for s.waiting > 0 && s.seatsInUse < s.dispatching.ConcurrencyLimit {
		q, times := s.next(likely)
		r := q.waiting.first
		if !s.accommodates(r.maxSeats()) {
			r.flow.countNoAccommodation()
			break
		}
		s.last = times
		s.dispatchFrom(q, r, now)
		changed = true
	}
	if changed {
		s.setDemand()
	}
}

func (s *queueSet) dispatchFrom(q *queue, r *Request, now time.Time) {
	s.dequeue(r)
	// Invariant: the total work remains the same.
	if limit := uint64(s.dispatching.ConcurrencyLimit); r.estimate.FinalSeats > limit {
		r.estimate.FinalSeats = limit
		r.estimate.AdditionalLatency = r.finalWork.DurationPerSeat(float64(limit))
	}
	s.robin = q.index
	s.last.r, s.last.s = s.currentR, q.nextDispatchR
	s.execute(r, now)
	q.nextDispatchR += r.work
	q.bound()
	if r.granted != nil {
		close(r.granted)
	}
}

// next returns the queue whose oldest request finishes first in the virtual world. There must be waiting requests. Of
// equal queues, the next one in turn wins.
func (s *queueSet) next(likely *queue) (best *queue, times virtualTimes) {
	times = virtualTimes{smallest: fcrequest.MaxSeatSeconds, smallestDiscounted: fcrequest.MaxSeatSeconds}
	if likely != nil && likely.waiting.length == s.waiting {
		times.note(likely)
		return likely, times
	}
	earliest, index, left := fcrequest.MaxSeatSeconds, s.robin, s.waiting
	for left > 0 {
		if index++; index >= len(s.queues) {
			index = 0
		}
		q := s.queues[index]
		if q.waiting.length == 0 {
			continue
		}
		left -= q.waiting.length
		times.note(q)
		if finish := q.nextDispatchR + q.waiting.first.work; finish < earliest || best == nil {
			best, earliest = q, finish
		}
	}
	return best, times
}

func (d *virtualTimes) note(q *queue) {
	discounted := q.nextDispatchR - min(q.nextDispatchR, fcrequest.SeatsTimesDuration(float64(q.seatsInUse), estimatedService))
	d.smallest, d.largest = min(d.smallest, q.nextDispatchR), max(d.largest, q.nextDispatchR)
	d.smallestDiscounted, d.largestDiscounted = min(d.smallestDiscounted, discounted), max(d.largestDiscounted, discounted)
}

// execute gives a request its seats.
func (s *queueSet) execute(r *Request, now time.Time) {
	r.dispatched, r.started = true, now
	s.executing.push(r)
	s.running++
	s.dispatched++
	s.seatsInUse += r.maxSeats()
	if q := r.queue; q != nil {
		q.executing++
		q.seatsInUse += r.maxSeats()
		s.requested += r.maxSeats()
		s.count(q)
	}
	s.executingGauge.Add(1)
	s.seatsGauge.Add(float64(r.maxSeats()))
	r.flow.addExecuting(1, r.maxSeats())
}

func (s *queueSet) setDemand() { s.demandGauge.Set(float64(s.seatsInUse + s.seatsWaiting)) }

// cancel removes a request from its queue. It reports false if the request has been dispatched meanwhile.
func (s *queueSet) cancel(r *Request) bool {
	s.lock()
	defer s.mu.Unlock()
	if r.dispatched {
		return false
	}
	s.dequeue(r)
	s.rejected++
	s.cancelled++
	s.setDemand()
	r.queue.bound()
	return true
}

// finish ends the execution of a request. Its seats become free at once, or after its additional latency.
func (s *queueSet) finish(r *Request) (took time.Duration) {
	now := s.lock()
	defer s.mu.Unlock()
	took = now.Sub(r.started)
	s.executing.remove(r)
	s.running--
	s.executingGauge.Add(-1)
	r.flow.addExecuting(-1, 0)
	if q := r.queue; q != nil {
		q.executing--
		s.count(q)
		// The difference between the assumed and the actual duration is credited or charged.
		q.nextDispatchR -= fcrequest.SeatsTimesDuration(float64(r.estimate.InitialSeats), estimatedService-took)
		q.bound()
	}
	if lasting := r.estimate.AdditionalLatency; lasting > 0 {
		s.after(lasting, func() {
			now := s.lock()
			defer s.mu.Unlock()
			s.release(r)
			s.dispatch(now, nil)
		})
	} else {
		s.release(r)
	}
	s.dispatch(now, nil)
	return took
}

// release gives back the seats of a finished request.
func (s *queueSet) release(r *Request) {
	seats := r.maxSeats()
	s.seatsInUse -= seats
	s.seatsGauge.Add(-float64(seats))
	s.setDemand()
	r.flow.addExecuting(0, -seats)
	q := r.queue
	if q == nil || q.removed {
		return
	}
	q.seatsInUse -= seats
	s.requested -= seats
	s.removeExcess(q)
}

// removeExcess removes a queue that is no longer desired and has no requests.
func (s *queueSet) removeExcess(q *queue) {
	if len(s.queues) <= s.queuing.DesiredNumQueues || q.busy() {
		return
	}
	q.removed = true
	s.requested -= q.seatsInUse
	s.queues = append(s.queues[:q.index], s.queues[q.index+1:]...)
	for i := q.index; i < len(s.queues); i++ {
		s.queues[i].index = i
	}
	if s.robin >= q.index {
		s.robin--
	}
}
