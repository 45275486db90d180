package request

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// ErrCPU is the cause with which a context ends when its work has exceeded its CPU time.
var ErrCPU = errors.New("the request needs too much CPU time")

// cpuSampling is the interval at which the CPU time of a thread is measured.
const cpuSampling = 50 * time.Millisecond

// LimitCPU returns a context that ends with the cause ErrCPU when the calling goroutine has used the given CPU time.
// The goroutine is locked to its thread until it calls stop; therefore the work must not wait for other servers. CPU
// time is limited instead of elapsed time, so that other load on the machine does not change the result of a request.
func LimitCPU(parent context.Context, limit time.Duration) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(parent)
	runtime.LockOSThread()
	thread := newThreadClock(unix.Gettid())
	before, err := thread.used()
	if err != nil {
		return ctx, func() { runtime.UnlockOSThread(); cancel(nil) }
	}
	s := &cpuSampler{thread: thread, most: before + limit, exceeded: func() { cancel(ErrCPU) }}
	s.sampleLater()
	return ctx, func() {
		s.stop()
		runtime.UnlockOSThread()
		cancel(nil)
	}
}

// cpuSampler compares the CPU time of a thread with a limit until it is stopped.
type cpuSampler struct {
	thread   threadClock
	most     time.Duration
	exceeded func()

	mu      sync.Mutex
	timer   *time.Timer
	stopped bool
}

func (s *cpuSampler) sampleLater() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timer = time.AfterFunc(cpuSampling, s.sample)
}

// sample measures the CPU time. It does not read the clock after stop has returned, because the thread may then run
// other goroutines.
func (s *cpuSampler) sample() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return
	}
	if used, err := s.thread.used(); err == nil && used > s.most {
		s.exceeded()
		return
	}
	s.timer.Reset(cpuSampling)
}

func (s *cpuSampler) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	s.timer.Stop()
}

// threadClock is the ID of the clock of a thread's CPU time.
type threadClock int32

// newThreadClock returns the clock of a thread, as pthread_getcpuclockid does: the thread's ID is inverted, and the
// lower three bits select the clock of the scheduler (2) for a single thread (4).
func newThreadClock(id int) threadClock { return threadClock(^int32(id)<<3 | 4 | 2) }

// used returns the CPU time of the thread.
func (c threadClock) used() (time.Duration, error) {
	var at unix.Timespec
	if err := unix.ClockGettime(int32(c), &at); err != nil {
		return 0, err
	}
	return time.Duration(at.Nano()), nil
}
