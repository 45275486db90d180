package flowcontrol

import fcrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"

// requests is a doubly linked list of requests in the order of their arrival, with sums over them.
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
	index   int // in queueSet.queues
	waiting requests
	// executing is the number of requests from this queue that execute. seatsInUse includes those that have finished and
	// keep their seats for their additional latency.
	executing, seatsInUse int
	// nextDispatchR is the virtual time at which the next request is dispatched in the virtual world. It is meaningful
	// only while the queue is busy.
	nextDispatchR fcrequest.SeatSeconds
	counted       bool // among queueSet.busy
	removed       bool // from queueSet.queues
}

// busy reports whether requests of the queue wait or execute.
func (q *queue) busy() bool { return q.waiting.length > 0 || q.executing > 0 }

// bound keeps the virtual dispatch of the oldest waiting request from preceding its arrival. Otherwise a queue that
// cannot use all its seats and never becomes empty would collect a claim on seats.
func (q *queue) bound() {
	if oldest := q.waiting.first; oldest != nil && q.nextDispatchR < oldest.arrivalR {
		q.nextDispatchR = oldest.arrivalR
	}
}
