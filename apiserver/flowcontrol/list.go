package flowcontrol

import fcrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"

// requests is a doubly linked list of requests in the order of their arrival, with sums over the requests. push and
// remove take O(1). Invariant: the estimate and work of a request do not change while it is in a list.
type requests struct {
	first, last  *Request
	length       int
	initialSeats int
	maxSeats     int
	work         fcrequest.SeatSeconds
}

func (l *requests) push(r *Request) {
	r.previous, r.next = l.last, nil
	if l.last == nil {
		l.first = r
	} else {
		l.last.next = r
	}
	l.last = r
	l.length++
	l.initialSeats += int(r.estimate.InitialSeats)
	l.maxSeats += r.maxSeats()
	l.work += r.work
}

func (l *requests) remove(r *Request) {
	if r.previous == nil {
		l.first = r.next
	} else {
		r.previous.next = r.next
	}
	if r.next == nil {
		l.last = r.previous
	} else {
		r.next.previous = r.previous
	}
	r.previous, r.next = nil, nil
	l.length--
	l.initialSeats -= int(r.estimate.InitialSeats)
	l.maxSeats -= r.maxSeats()
	l.work -= r.work
}

// queue is one queue of a priority level.
type queue struct {
	// index is the position of the queue in queueSet.queues. It changes when a queue before it is removed.
	index int
	// waiting has the waiting requests; executing ones are in queueSet.executing.
	waiting requests
	// executing is the number of executing requests from this queue. seatsInUse is the number of seats that these
	// requests hold, and that finished requests hold during their additional latency.
	executing, seatsInUse int
	// nextDispatchR is the virtual time at which the oldest waiting request is dispatched in the virtual world. It is
	// meaningful only while the queue is busy. Invariant: it is not less than arrivalR of that request while the lock
	// of the queue set is free.
	nextDispatchR fcrequest.SeatSeconds
	// counted is set while queueSet.busy counts this queue.
	counted bool
	// removed is set when the queue has been removed from queueSet.queues.
	removed bool
}

// busy reports whether requests of the queue are waiting or executing.
func (q *queue) busy() bool { return q.waiting.length > 0 || q.executing > 0 }

// bound increases nextDispatchR to the arrival of the oldest waiting request. Otherwise a queue that cannot use all
// its seats and never becomes empty would accumulate a claim on seats. It is upstream's boundNextDispatchLocked, and
// must be called after each change of the oldest request or of nextDispatchR.
func (q *queue) bound() {
	if oldest := q.waiting.first; oldest != nil && q.nextDispatchR < oldest.arrivalR {
		q.nextDispatchR = oldest.arrivalR
	}
}
