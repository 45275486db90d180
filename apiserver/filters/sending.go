package filters

import (
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"quorate.dev/apiserver/request"
)

// SendLimits bound responses whose clients do not read them. Zero fields have defaults.
type SendLimits struct {
	// Stalled is the time without progress after which a response is stalled. It then loses its seat.
	Stalled time.Duration
	// PerUser is the number of stalled responses to one user above which further requests of the user are rejected.
	PerUser int
	// A response is reset that makes no progress in Window, or in LongRunningWindow if the request is long-running.
	Window, LongRunningWindow time.Duration
}

var defaultSendLimits = SendLimits{
	Stalled: 500 * time.Millisecond, PerUser: 100, Window: 10 * time.Second, LongRunningWindow: time.Minute,
}

func (l SendLimits) withDefaults() SendLimits {
	for _, field := range []struct{ value, byDefault *time.Duration }{
		{&l.Stalled, &defaultSendLimits.Stalled}, {&l.Window, &defaultSendLimits.Window},
		{&l.LongRunningWindow, &defaultSendLimits.LongRunningWindow},
	} {
		if *field.value == 0 {
			*field.value = *field.byDefault
		}
	}
	if l.PerUser == 0 {
		l.PerUser = defaultSendLimits.PerUser
	}
	return l
}

const (
	// unblockedBody is the number of bytes of a response that net/http buffers, so that writing them does not block.
	unblockedBody = 4 << 10
	// progress is the size of the parts in which a response is written, and thus what a client must read in each window.
	progress = 64 << 10
)

// sending follows all responses that are being written. A client that reads slowly, or not at all, blocks the handler in a
// write; with HTTP/2, one connection can have a hundred such responses. Within limits they hold memory and a goroutine,
// but no seats.
//
// One timer looks at all responses, because most are written before a timer of their own could fire.
type sending struct {
	limits  SendLimits
	metrics *Metrics
	stalled atomic.Int64 // Invariant: the sum of byUser. It is read without the lock.

	mu       sync.Mutex
	active   map[*sender]struct{}
	byUser   map[string]int // stalled responses; no entry is 0
	checking bool           // The timer of check runs. Invariant: true while active is not empty.
}

func newSending(limits SendLimits, metrics *Metrics) *sending {
	return &sending{
		limits: limits.withDefaults(), metrics: metrics, active: map[*sender]struct{}{}, byUser: map[string]int{},
	}
}

// sender is one response, from its first write that may block until its handler returns.
type sender struct {
	all      *sending
	record   *request.Record
	response http.ResponseWriter
	window   time.Duration
	began    atomic.Int64 // time of the current write in nanoseconds since 1970; 0 between writes
	slow     atomic.Bool  // counted in all.byUser; changed with all.mu locked
	reset    bool         // guarded by all.mu
}

// begin follows a response. The caller must call end before the handler returns.
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

// write writes a part of the response, in parts of which each is progress.
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

// resume ends a stall.
func (s *sender) resume() {
	s.all.mu.Lock()
	defer s.all.mu.Unlock()
	s.all.count(s, false)
}

// end stops following the response, after which check no longer uses it.
func (s *sender) end() {
	s.all.mu.Lock()
	defer s.all.mu.Unlock()
	s.all.count(s, false)
	delete(s.all.active, s)
}

// count marks a response as stalled, or as not stalled. The lock must be held.
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
			// With the lock held, because the response must not be used after end has returned.
			one.reset = true
			s.metrics.resetResponses.Inc()
			_ = http.NewResponseController(one.response).SetWriteDeadline(time.Unix(1, 0))
		}
	}
	if s.checking = len(s.active) > 0; s.checking {
		time.AfterFunc(s.limits.Stalled/2, s.check)
	}
}

// admits reports whether a user may send further requests.
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
