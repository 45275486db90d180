package memory

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"k8s.io/utils/clock"
)

// Heap is the state of the heap at one time.
type Heap struct {
	// Cycle is the number of garbage collections.
	Cycle int64
	// Live is the number of bytes that the last garbage collection found in use.
	Live int64
	// Kept is the number of bytes that Go has got from the system for the heap and has not returned.
	Kept int64
}

const (
	// idleInterval is the interval at which Returns compares the heap. Go's runtime collects garbage at least every two
	// minutes.
	idleInterval = 2 * time.Minute
	// idleCycles is the number of garbage collections in an idleInterval up to which the process is idle: the periodic
	// ones, and one that the last allocations before caused.
	idleCycles = 2
	// returnedPart is the reciprocal of the share of the live memory, and returnedLeast the number of bytes, that must be
	// free so that a collection of the whole heap is worth its CPU time.
	returnedPart  = 4
	returnedLeast = 8 << 20
)

// Returns reports whether the process returns free memory to the system: it has been idle since an earlier sample, and
// keeps much more memory than it uses. Go's runtime returns memory by itself only down to the size to which the heap
// may grow before the next collection.
func Returns(earlier, now Heap) bool {
	free := now.Kept - now.Live
	return now.Cycle-earlier.Cycle <= idleCycles && free > returnedLeast && free > now.Live/returnedPart
}

// ReturnWhenIdle returns free memory to the system whenever Returns decides so, until ctx ends.
func ReturnWhenIdle(ctx context.Context, ticks clock.WithTicker) {
	ticker := ticks.NewTicker(idleInterval)
	defer ticker.Stop()
	earlier := readHeap()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		}
		if Returns(earlier, readHeap()) {
			debug.FreeOSMemory()
		}
		earlier = readHeap() // after the collection of FreeOSMemory, which does not mean that the process is busy
	}
}

func readHeap() Heap {
	samples := []metrics.Sample{
		{Name: "/gc/cycles/total:gc-cycles"}, {Name: "/gc/heap/live:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/unused:bytes"},
		{Name: "/memory/classes/heap/free:bytes"},
	}
	metrics.Read(samples)
	value := func(i int) int64 { return int64(samples[i].Value.Uint64()) }
	return Heap{Cycle: value(0), Live: value(1), Kept: value(2) + value(3) + value(4)}
}
