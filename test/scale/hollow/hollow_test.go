package hollow

import (
	"testing"
	"time"
)

func TestHistogram(t *testing.T) {
	var h Histogram
	for i := range 1000 {
		h.Add(time.Duration(i+1) * time.Millisecond)
	}
	for q, want := range map[float64]time.Duration{0.5: 500 * time.Millisecond, 0.99: 990 * time.Millisecond} {
		if got := h.Quantile(q); got < want || got > want+want*4/100 {
			t.Errorf("quantile %v: got %v, want %v", q, got, want)
		}
	}
	if h.Max() != time.Second || h.Quantile(1) != time.Second || h.Count() != 1000 {
		t.Errorf("max %v, %v, count %d", h.Max(), h.Quantile(1), h.Count())
	}
}

func TestHistogramOfNothing(t *testing.T) {
	var h Histogram
	if h.Quantile(0.5) != 0 || h.Max() != 0 {
		t.Errorf("got %v, %v", h.Quantile(0.5), h.Max())
	}
	h.Add(-time.Second) // clocks of the sender and the receiver are the same one, but may be set
	if h.Quantile(1) != 0 || h.Count() != 1 {
		t.Errorf("got %v, %d", h.Quantile(1), h.Count())
	}
}

func TestTimesOfOtherChangesAreOld(t *testing.T) {
	var times sendTimes
	begin := time.Unix(1000, 0)
	times.begin(begin)
	for i, step := range []struct {
		after time.Duration // of the sending after the beginning
		isNew bool
	}{
		{-time.Second, false}, {-time.Millisecond, true}, {time.Second, true}, {time.Second, false},
		{time.Second - time.Millisecond, true}, {2 * time.Second, true}, {time.Second, false}, {-10 * time.Second, false},
	} {
		if got := times.isNew(begin.Add(step.after).UnixNano()); got != step.isNew {
			t.Errorf("step %d, sent after %v: got %t", i, step.after, got)
		}
	}
	if times.isNew(0) {
		t.Error("an event without the annotation is new")
	}
}

func TestBucketsContainTheirValues(t *testing.T) {
	for shift := range 62 {
		for _, value := range []uint64{1 << shift, 1<<shift + 1, 3 << shift >> 1} {
			b := bucket(value)
			if b >= bucketCount || uint64(upper(b)) < value || b > 0 && uint64(upper(b-1)) >= value {
				t.Errorf("%d is in bucket %d, which ends with %d", value, b, upper(b))
			}
		}
	}
}
