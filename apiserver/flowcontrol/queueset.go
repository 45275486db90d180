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

// estimatedService is the assumed duration of a request until it has finished, upstream's estimatedServiceDuration.
const estimatedService = 3 * time.Millisecond

// queueSet has the seats and queues of one priority level. It is equivalent to upstream's queueSet
// (fairqueuing/queueset), but keeps sums that upstream computes at each step; TestDecisionsOfUpstream compares their
// decisions. See the package documentation for the virtual time.
type queueSet struct {
	clock clock.PassiveClock
	// after calls a function after a delay, in another goroutine.
	after func(time.Duration, func())
	// configured is called after each change of the configuration, without the lock.
	configured func(name string, set *queueSet)

	waitingGauge, executingGauge, seatsGauge metrics.RatioedGauge
	demandGauge                              metrics.Gauge

	// undesired is set if the priority level has been deleted. The queue set remains until its requests have
	// finished.
	undesired atomic.Bool

	// mu guards the fields below, the queues, and the fields of Requests that say so. Methods that need it locked are
	// called between lock and mu.Unlock; the exceptions lock it themselves: configure, start, cancel, finish, IsIdle
	// and Dump.
	mu          sync.Mutex
	queuing     fq.QueuingConfig
	dispatching fq.DispatchingConfig
	// dealer is nil if the priority level has no queues.
	dealer *shufflesharding.Dealer
	// queues has the queues in use. There may be more than desired while the excess queues drain.
	queues []*queue
	// currentR is the virtual time, upstream's R.
	currentR fcrequest.SeatSeconds
	// lastSync is the time at which currentR was last advanced.
	lastSync time.Time
	// robin is the index of the queue from which a request was dispatched last.
	robin int
	// busy is the number of queues with waiting or executing requests.
	busy int
	// requested is the number of seats that requests of all queues use or wait for.
	requested int
	// enqueued is the number of requests for which a queue was chosen; deal rotates hands by it.
	enqueued int
	// executing has all executing requests.
	executing requests

	// waiting and running are the numbers of waiting and executing requests; seatsWaiting and seatsInUse are numbers
	// of seats. seatsInUse includes the seats that finished requests hold during their additional latency.
	waiting, seatsWaiting, seatsInUse, running int
	rejected, cancelled, dispatched            int

	// last has the virtual times of the last dispatch from a queue, for metrics.
	last virtualTimes
	// advanced counts the calls of advanceEpoch, first those without success and then those with success.
	advanced [2]int
}

// virtualTimes has the virtual times at a dispatch from a queue: of the queue set (r), of the dispatched request (s),
// and the smallest and largest nextDispatchR of all queues with waiting requests, without and with a discount for the
// work in progress.
type virtualTimes struct {
	r, s, smallest, largest, smallestDiscounted, largestDiscounted fcrequest.SeatSeconds
}

// exempt reports whether requests of the priority level are not limited.
func (s *queueSet) exempt() bool { return s.queuing.DesiredNumQueues < 0 }

// lock acquires mu, advances the virtual time and returns the current time. It must precede every change of the
// queues, because the rate of the virtual time depends on them. It is upstream's lockAndSyncTime.
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

// When the virtual time reaches highR, it is decreased by epoch, upstream's rDecrement, so that it does not overflow.
const (
	epoch = fcrequest.MaxSeatSeconds / 2
	highR = epoch + epoch/2
)

// advanceEpoch decreases the virtual time, and all readings of it, by epoch. It is counted as without success if a
// reading was less than epoch, and so cannot be decreased by that much.
func (s *queueSet) advanceEpoch() {
	success := 1
	back := func(r *fcrequest.SeatSeconds) {
		// A reading of less than epoch is too old.
		if *r < epoch {
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

// configure applies a changed configuration. Queues that are no longer desired drain: they get no requests any more.
func (s *queueSet) configure(
	queuing fq.QueuingConfig, dealer *shufflesharding.Dealer, dispatching fq.DispatchingConfig,
) {
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

// start dispatches a request or adds it to a queue. If it rejects the request, ok is false, and reason is the value
// of the metrics' label reason.
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

// deal deals a hand of queues, and returns the index of the queue in the hand whose waiting requests have the least
// work. It visits the hand from a different queue each time, which avoids a bias between equal queues of overlapping
// hands. It is upstream's shuffleShardLocked.
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

// enqueue adds a request to a queue. The caller must call bound.
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

// dequeue removes a waiting request from its queue. The caller must call bound.
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

// count updates the number of busy queues. It must be called after each change of q's requests.
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

// accommodates reports whether a request that needs the given number of seats can execute now. A request that needs
// more seats than the priority level has executes alone. It is upstream's canAccommodateSeatsLocked.
func (s *queueSet) accommodates(seats int) bool {
	switch {
	case s.exempt():
		return true
	case seats > s.dispatching.ConcurrencyLimit:
		return s.running == 0
	}
	return s.seatsInUse+seats <= s.dispatching.ConcurrencyLimit
}

// dispatch executes waiting requests while seats are free. It stops when the request whose turn it is needs more
// seats than are free, even if others need fewer. likely is a queue that may have all waiting requests, or nil.
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

// dispatchFrom executes the oldest request of a queue, and advances the queue's nextDispatchR by the work of the
// request. A request gets at most all seats of the priority level in its additional latency, which is extended
// accordingly.
func (s *queueSet) dispatchFrom(q *queue, r *Request, now time.Time) {
	s.dequeue(r)
	// Invariant: the total work of the request remains the same.
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

// next returns the queue whose oldest request finishes first in the virtual world. Of equal queues, it returns the
// next one in turn after robin. There must be waiting requests. It is upstream's findDispatchQueueToBoundLocked.
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

// note takes account of a queue in the smallest and largest values.
func (d *virtualTimes) note(q *queue) {
	discounted := q.nextDispatchR - min(q.nextDispatchR,
		fcrequest.SeatsTimesDuration(float64(q.seatsInUse), estimatedService))
	d.smallest, d.largest = min(d.smallest, q.nextDispatchR), max(d.largest, q.nextDispatchR)
	d.smallestDiscounted, d.largestDiscounted = min(d.smallestDiscounted, discounted), max(d.largestDiscounted, discounted)
}

// execute marks a request as executing and gives the request its seats.
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

// cancel removes a waiting request from its queue. It returns false if the request has been dispatched in the
// meantime.
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

// finish ends the execution of a request, and dispatches others. The seats of the request become free immediately, or
// after its additional latency. It is upstream's finishRequestLocked.
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
		// nextDispatchR was advanced by the assumed duration; the difference to the actual one is credited or charged
		// to the queue.
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

// release releases the seats of a finished request. The caller dispatches.
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

// removeExcess removes a queue that is not busy, if there are more queues than desired. Finished requests of the
// queue may still hold seats; they count in seatsInUse, but not in requested any more.
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
