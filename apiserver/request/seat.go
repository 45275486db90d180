package request

// Seat is what a limit of concurrent requests has given to a request: seats of a priority level, or a slot in flight.
// Its methods are safe for concurrent use.
type Seat interface {
	// Release gives the seat back before the handler returns. Further calls have no effect.
	Release()
	// Retake takes a seat again after Release, and may wait for one in a queue. It reports whether the request may go on.
	// Without a call of Release before, it has no effect and returns true.
	Retake() bool
}

// ReleaseSeat gives the request's seat back, if it has one. The rest of the request should be nothing but writing an
// encoded body to the connection, which may take long if the client reads slowly. A nil record has no seat.
func (r *Record) ReleaseSeat() {
	if r != nil && r.Seat != nil {
		r.Seat.Release()
	}
}

// RetakeSeat takes the seat again after ReleaseSeat. It reports whether the request may go on.
func (r *Record) RetakeSeat() bool { return r.Seat == nil || r.Seat.Retake() }
