package process

import "time"

// Back-off between restarts: at once after the first end, then from firstDelay doubling to longestDelay. A run of at least
// settledAfter starts over. They are shorter than a kubelet's, because a sandbox is watched by a person.
const (
	firstDelay   = time.Second
	longestDelay = 30 * time.Second
	settledAfter = time.Minute
)

// Backoff counts ends that follow each other closely. The zero value is ready for use.
type Backoff struct {
	ends int
}

// Next returns how long to wait before starting again something that ended after running for ran.
func (b *Backoff) Next(ran time.Duration) time.Duration {
	if ran >= settledAfter {
		b.ends = 0
	}
	b.ends++
	if b.ends == 1 {
		return 0
	}
	delay := firstDelay
	for range b.ends - 2 {
		delay = min(2*delay, longestDelay)
	}
	return delay
}
