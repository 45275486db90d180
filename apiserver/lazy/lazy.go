// Package lazy has values that are made on first use and dropped when they have not been used for some time.
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

// Set drops values that are not used. The zero value is ready for use.
type Set struct {
	now atomic.Int64 // number of sweeps

	lock sync.Mutex
	made map[droppable]struct{}
}

type droppable interface {
	// dropUnused drops the value unless it was used after a sweep.
	dropUnused(since int64) bool
}

// Run drops values that have not been used for a time, until ctx ends. They may be kept for a quarter of it longer.
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
	since := s.now.Add(1) - ticks - 1 // the use was after that sweep
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

// Len returns the number of values that exist.
func (s *Set) Len() int {
	s.lock.Lock()
	defer s.lock.Unlock()
	return len(s.made)
}

// Value is a value that is made on first use. The zero value is ready for use. It must not be copied.
type Value[T any] struct {
	making  sync.Mutex
	current atomic.Pointer[made[T]]
}

type made[T any] struct {
	value T
	err   error
	used  atomic.Int64 // sweep before the last use
}

// Get returns the value, which it makes if there is none. Callers that need it meanwhile wait. An error is kept like a
// value. make must always return the same for one Value, and must not use it.
func (v *Value[T]) Get(set *Set, make func() (T, error)) (T, error) {
	m := v.current.Load()
	if m == nil {
		m = v.make(set, make)
	}
	if now := set.now.Load(); m.used.Load() != now { // avoids contention for the cache line
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
