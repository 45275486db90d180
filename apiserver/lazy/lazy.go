// Package lazy has values that are created on first use and dropped when they have not been used for some time.
package lazy

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"
)

// ticks is the number of sweeps in the time after which an unused value is dropped.
const ticks = 4

// Set drops unused values. The zero value is ready to use.
type Set struct {
	// now is the number of sweeps so far.
	now atomic.Int64

	lock sync.Mutex
	made map[droppable]struct{}
}

type droppable interface {
	// dropUnused drops the value unless it has been used after the sweep number since, and reports whether it has
	// dropped it.
	dropUnused(since int64) bool
}

// Run drops the values that have not been used for the time idle, until ctx ends. A value may be kept for up to a
// quarter of idle longer.
func (s *Set) Run(ctx context.Context, clock clock.WithTicker, idle time.Duration) {
	ticker := clock.NewTicker(idle / ticks)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
			s.sweep()
		}
	}
}

func (s *Set) sweep() {
	// A value is kept if it has been used after this sweep.
	since := s.now.Add(1) - ticks - 1
	s.lock.Lock()
	defer s.lock.Unlock()
	for value := range s.made {
		if value.dropUnused(since) {
			delete(s.made, value)
		}
	}
}

func (s *Set) add(value droppable) {
	s.lock.Lock()
	defer s.lock.Unlock()
	if s.made == nil {
		s.made = map[droppable]struct{}{}
	}
	s.made[value] = struct{}{}
}

// Len returns the number of values that have been created and not dropped.
func (s *Set) Len() int {
	s.lock.Lock()
	defer s.lock.Unlock()
	return len(s.made)
}

// Value is a value that is created on first use. The zero value is ready to use. A Value must not be copied.
type Value[T any] struct {
	making  sync.Mutex
	current atomic.Pointer[made[T]]
}

type made[T any] struct {
	value T
	err   error
	// used is the number of sweeps at the last use.
	used atomic.Int64
}

// Get returns the value, and creates it with make if it does not exist. Concurrent callers wait for it. An error is
// kept like a value. All calls for one Value must pass an equivalent make, which must not use the Value itself.
func (v *Value[T]) Get(set *Set, make func() (T, error)) (T, error) {
	m := v.current.Load()
	if m == nil {
		m = v.make(set, make)
	}
	// The comparison avoids contention for the cache line.
	if now := set.now.Load(); m.used.Load() != now {
		m.used.Store(now)
	}
	return m.value, m.err
}

func (v *Value[T]) make(set *Set, make func() (T, error)) *made[T] {
	v.making.Lock()
	defer v.making.Unlock()
	if m := v.current.Load(); m != nil {
		return m
	}
	m := &made[T]{}
	m.value, m.err = make()
	m.used.Store(set.now.Load())
	v.current.Store(m)
	set.add(v)
	return m
}

func (v *Value[T]) dropUnused(since int64) bool {
	m := v.current.Load()
	if m == nil {
		return true
	}
	return m.used.Load() <= since && v.current.CompareAndSwap(m, nil)
}
