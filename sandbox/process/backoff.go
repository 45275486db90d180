package process

import "time"

// Back-off between restarts: none after the first exit, then firstDelay, doubled up to longestDelay. It is reset by a
// run of at least settledAfter. The delays are shorter than the kubelet's, because a sandbox is used interactively.
const (
	firstDelay   = time.Second
	longestDelay = 30 * time.Second
	settledAfter = time.Minute
)

// Backoff is the back-off of one container. The zero value is ready for use.
type Backoff struct {
	ends int
}

// Next returns the delay before the restart of a process that exited after running for ran.
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
