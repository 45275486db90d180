package hollow

import (
	"math"
	"math/bits"
	"sync/atomic"
	"time"
)

// Buckets of a histogram: the values between two powers of two are divided into 1<<fineness buckets.
const (
	fineness    = 5
	bucketCount = (64 - fineness) << fineness
)

// Histogram counts durations in buckets that are about 3 % wide. Its methods may be called concurrently.
type Histogram struct {
	counts  [bucketCount]atomic.Int64
	largest atomic.Int64
}

// Add counts a duration. Negative durations count as 0.
func (h *Histogram) Add(d time.Duration) {
	value := uint64(max(d, 0))
	h.counts[bucket(value)].Add(1)
	for {
		largest := h.largest.Load()
		if int64(d) <= largest || h.largest.CompareAndSwap(largest, int64(d)) {
			return
		}
	}
}

func bucket(value uint64) int {
	shift := max(bits.Len64(value)-fineness-1, 0)
	return shift<<fineness + int(value>>shift)
}

// upper returns the largest value of a bucket.
func upper(bucket int) time.Duration {
	shift := max(bucket>>fineness-1, 0)
	return time.Duration(uint64(bucket-shift<<fineness+1)<<shift - 1)
}

// Count returns the number of durations.
func (h *Histogram) Count() (total int64) {
	for i := range h.counts {
		total += h.counts[i].Load()
	}
	return total
}

// Quantile returns an upper bound of the fraction q of all durations, which is at most 3 % too large.
func (h *Histogram) Quantile(q float64) time.Duration {
	rank := int64(math.Ceil(q * float64(h.Count())))
	for i := range h.counts {
		rank -= h.counts[i].Load()
		if rank <= 0 && h.counts[i].Load() > 0 {
			return min(upper(i), h.Max())
		}
	}
	return 0
}

// Max returns the largest duration.
func (h *Histogram) Max() time.Duration { return time.Duration(h.largest.Load()) }
