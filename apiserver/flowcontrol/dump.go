package flowcontrol

import "k8s.io/apiserver/pkg/util/flowcontrol/debug"

// Dump implements fairqueuing.QueueSet. It returns the state of the queue set for the debug endpoints.
func (s *queueSet) Dump(details bool) debug.QueueSetDump {
	s.mu.Lock()
	defer s.mu.Unlock()
	dump := debug.QueueSetDump{
		Queues: make([]debug.QueueDump, len(s.queues)), Waiting: s.waiting, Executing: s.running, SeatsInUse: s.seatsInUse,
		SeatsWaiting: s.seatsWaiting, Dispatched: s.dispatched, Rejected: s.rejected, Cancelled: s.cancelled,
	}
	for i, q := range s.queues {
		dump.Queues[i] = q.dump(details)
	}
	for r := s.executing.first; r != nil; r = r.next {
		if q := r.queue; q == nil || q.removed {
			dump.QueuelessExecutingRequests = append(dump.QueuelessExecutingRequests, r.dump(details))
		} else {
			of := &dump.Queues[q.index]
			of.RequestsExecuting = append(of.RequestsExecuting, r.dump(details))
		}
	}
	return dump
}

func (q *queue) dump(details bool) debug.QueueDump {
	dump := debug.QueueDump{
		QueueSum: debug.QueueSum{
			InitialSeatsSum: q.waiting.initialSeats, MaxSeatsSum: q.waiting.maxSeats, TotalWorkSum: q.waiting.work.String(),
		},
		NextDispatchR: q.nextDispatchR.String(), ExecutingRequests: q.executing, SeatsInUse: q.seatsInUse,
	}
	for r := q.waiting.first; r != nil; r = r.next {
		dump.Requests = append(dump.Requests, r.dump(details))
	}
	return dump
}

func (r *Request) dump(details bool) debug.RequestDump {
	dump := debug.RequestDump{
		MatchedFlowSchema: r.flow.Schema, FlowDistinguisher: r.distinguisher, ArriveTime: r.arrival, StartTime: r.started,
		WorkEstimate: r.estimate,
	}
	if details && r.user != nil && r.info != nil {
		dump.UserName, dump.RequestInfo = r.user.GetName(), *r.info
	}
	return dump
}
