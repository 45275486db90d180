package process

import "time"

// Delays of restarts: none after the first exit, then firstDelay, which doubles up to longestDelay. After a process has
// run for at least settledAfter, its next exit counts as the first one. The delays are shorter than the kubelet's,
// because a sandbox is used interactively.
const (
	firstDelay   = time.Second
	longestDelay = 30 * time.Second
	settledAfter = time.Minute
)

// Backoff computes the delays of one container's restarts. The zero value is ready for use.
type Backoff struct {
	ends int
}

// Next returns the delay before the restart of a process that ran for a duration.
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
