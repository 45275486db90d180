package memory

import (
	"context"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
)

func TestReturns(t *testing.T) {
	const mebibyte = 1 << 20
	for name, test := range map[string]struct {
		cycles, live, kept int64
		want               bool
	}{
		"idle after a load":                     {1, 40 * mebibyte, 120 * mebibyte, true},
		"the periodic collection and one more":  {2, 40 * mebibyte, 120 * mebibyte, true},
		"busy":                                  {3, 40 * mebibyte, 120 * mebibyte, false},
		"little is free":                        {1, 20 * mebibyte, 27 * mebibyte, false},
		"little is free in a large heap":        {1, 1000 * mebibyte, 1200 * mebibyte, false},
		"a quarter of a large heap is free":     {1, 1000 * mebibyte, 1251 * mebibyte, true},
		"no collection, and all memory is free": {0, 0, 9 * mebibyte, true},
	} {
		earlier := Heap{Cycle: 7}
		if got := Returns(earlier, Heap{Cycle: 7 + test.cycles, Live: test.live, Kept: test.kept}); got != test.want {
			t.Errorf("%s: got %t", name, got)
		}
	}
}

// TestReturnWhenIdle frees much memory and checks that the process keeps less of it after the interval.
func TestReturnWhenIdle(t *testing.T) {
	load := make([][]byte, 64)
	for i := range load {
		load[i] = make([]byte, 1<<20)
	}
	runtime.KeepAlive(load)
	load = nil
	before := readHeap().Kept
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		fake := clocktesting.NewFakeClock(time.Unix(0, 0))
		go ReturnWhenIdle(ctx, fake)
		synctest.Wait()
		fake.Step(idleInterval)
		synctest.Wait()
		cancel()
	})
	if after := readHeap().Kept; after > before-(32<<20) {
		t.Errorf("the heap has %d bytes, after the load it had %d", after, before)
	}
}
