package filters

import (
	"cmp"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"quorate.dev/apiserver/request"
)

// SendLimits bound responses whose clients do not read them. Fields that are 0 have defaults.
type SendLimits struct {
	// Stalled is the time without progress after which a response is stalled. A stalled response loses its seat.
	Stalled time.Duration
	// PerUser is the number of stalled responses to one user above which further requests of the user are rejected.
	PerUser int
	// Window, or LongRunningWindow for long-running requests, is the time without progress after which a response is
	// reset.
	Window, LongRunningWindow time.Duration
}

var defaultSendLimits = SendLimits{
	Stalled: 500 * time.Millisecond, PerUser: 100, Window: 10 * time.Second, LongRunningWindow: time.Minute,
}

func (l SendLimits) withDefaults() SendLimits {
	d := defaultSendLimits
	return SendLimits{
		Stalled: cmp.Or(l.Stalled, d.Stalled), PerUser: cmp.Or(l.PerUser, d.PerUser),
		Window: cmp.Or(l.Window, d.Window), LongRunningWindow: cmp.Or(l.LongRunningWindow, d.LongRunningWindow),
	}
}

const (
	// unblockedBody is the number of bytes of a response that net/http buffers, so that writing them does not block.
	unblockedBody = 4 << 10
	// progress is the number of bytes in each write of a response, which the client must read within the window.
	progress = 64 << 10
)

// sending tracks all responses whose writes may block. A client that reads slowly, or not at all, blocks the handler in
// a write; with HTTP/2, one connection can have a hundred such responses. Within the limits, these responses hold
// memory and a goroutine, but no seats.
//
// One timer checks all responses, because most are sent before a timer of their own could fire.
type sending struct {
	limits  SendLimits
	metrics *Metrics
	// stalled is the number of stalled responses. Invariant: stalled is the sum of byUser. It is read without the lock.
	stalled atomic.Int64

	mu     sync.Mutex
	active map[*sender]struct{}
	// byUser has the number of stalled responses of each user. Invariant: no entry is 0.
	byUser map[string]int
	// checking is set while the timer of check runs. Invariant: checking is true if active is not empty.
	checking bool
}

func newSending(limits SendLimits, metrics *Metrics) *sending {
	return &sending{
		limits: limits.withDefaults(), metrics: metrics, active: map[*sender]struct{}{}, byUser: map[string]int{},
	}
}

// sender sends one response, from its first write that may block until its handler returns.
type sender struct {
	all      *sending
	record   *request.Record
	response http.ResponseWriter
	window   time.Duration
	// began is the time of the current write in nanoseconds since 1970; 0 between writes.
	began atomic.Int64
	// slow is set while the response is counted in all.byUser. It is changed only with all.mu locked.
	slow atomic.Bool
	// reset is set when check has reset the response. It is guarded by all.mu.
	reset bool
}

// begin starts tracking a response. The caller must call end before the handler returns.
func (s *sending) begin(w http.ResponseWriter, record *request.Record) *sender {
	one := &sender{all: s, record: record, response: w, window: s.limits.Window}
	if record.LongRunning {
		one.window = s.limits.LongRunningWindow
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.active[one] = struct{}{}
	if !s.checking {
		s.checking = true
		time.AfterFunc(s.limits.Stalled/2, s.check)
	}
	return one
}

// write writes p to the response, at most progress bytes at a time.
func (s *sender) write(p []byte) (written int, err error) {
	for err == nil && len(p) > 0 {
		part := p[:min(len(p), progress)]
		s.began.Store(time.Now().UnixNano())
		n := 0
		n, err = s.response.Write(part)
		s.began.Store(0)
		if s.slow.Load() {
			s.resume()
		}
		written += n
		p = p[len(part):]
	}
	return written, err
}

// resume marks the response as not stalled.
func (s *sender) resume() {
	s.all.mu.Lock()
	defer s.all.mu.Unlock()
	s.all.count(s, false)
}

// end stops tracking the response. check does not use the response after end has returned.
func (s *sender) end() {
	s.all.mu.Lock()
	defer s.all.mu.Unlock()
	s.all.count(s, false)
	delete(s.all.active, s)
}

// count marks a response as stalled or as not stalled. The caller must hold the lock.
func (s *sending) count(one *sender, slow bool) {
	if one.slow.Load() == slow {
		return
	}
	one.slow.Store(slow)
	name, change := userName(one.record), 1
	if !slow {
		change = -1
	}
	if s.byUser[name] += change; s.byUser[name] == 0 {
		delete(s.byUser, name)
	}
	s.metrics.stalledResponses.Set(float64(s.stalled.Add(int64(change))))
}

// check marks stalled responses, releases their seats, and resets those that have been stalled for too long.
func (s *sending) check() {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now().UnixNano()
	for one := range s.active {
		began := one.began.Load()
		if began == 0 {
			continue
		}
		blocked := time.Duration(now - began)
		if blocked >= s.limits.Stalled && !one.record.LongRunning {
			s.count(one, true)
			one.record.ReleaseSeat()
		}
		if blocked >= one.window && !one.reset {
			// The lock is held, because the response must not be used after end has returned.
			one.reset = true
			s.metrics.resetResponses.Inc()
			_ = http.NewResponseController(one.response).SetWriteDeadline(time.Unix(1, 0))
		}
	}
	if s.checking = len(s.active) > 0; s.checking {
		time.AfterFunc(s.limits.Stalled/2, s.check)
	}
}

// admits reports whether the user of a request has fewer stalled responses than the limit.
func (s *sending) admits(record *request.Record) bool {
	if s.stalled.Load() < int64(s.limits.PerUser) {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byUser[userName(record)] < s.limits.PerUser
}

func userName(record *request.Record) string {
	if record.User == nil {
		return ""
	}
	return record.User.GetName()
}

// slowReaders rejects requests of users with too many stalled responses. Administrators are exempt.
type slowReaders struct {
	next    http.Handler
	sending *sending
	metrics *Metrics
}

func (f *slowReaders) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	record := request.From(r.Context())
	if !f.sending.admits(record) && !privileged(record) {
		f.metrics.dropped(record, r)
		refuseTooMany(w, "1")
		return
	}
	f.next.ServeHTTP(w, r)
}
