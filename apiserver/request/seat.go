package request

// Seat is a request's share of a limit of concurrent requests: the seats of a priority level, or a slot in flight.
// Its methods are safe for concurrent use.
type Seat interface {
	// Release releases the seat before the handler returns. Further calls have no effect.
	Release()
	// Retake acquires the seat again after Release, for which it may wait in a queue. It reports whether the request
	// may proceed. Without a preceding Release it has no effect and returns true.
	Retake() bool
}

// ReleaseSeat releases the request's seat, if it has one. A caller must have no work left but to write an encoded body
// to the connection, which takes long if the client reads slowly, or must call RetakeSeat. A nil record has no seat.
func (r *Record) ReleaseSeat() {
	if r != nil && r.Seat != nil {
		r.Seat.Release()
	}
}

// RetakeSeat acquires the seat again after ReleaseSeat. It reports whether the request may proceed.
func (r *Record) RetakeSeat() bool { return r.Seat == nil || r.Seat.Retake() }
