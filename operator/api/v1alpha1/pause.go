package v1alpha1

import (
	"fmt"
	"time"
)

// PausedUntilAnnotation pauses an ApiServerCluster until a time in RFC 3339, such as 2026-01-01T06:00:00Z. Until then the
// operator changes none of its objects and renews no certificate; it still reports the status, and still deletes a
// cluster that is being deleted. A pause has to end, because a cluster without its operator loses members and
// certificates.
const PausedUntilAnnotation = "quorate.dev/paused-until"

// PausedUntil returns the time in the annotation, or zero without one.
func (c *ApiServerCluster) PausedUntil() (time.Time, error) {
	text, ok := c.Annotations[PausedUntilAnnotation]
	if !ok {
		return time.Time{}, nil
	}
	until, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}, fmt.Errorf("metadata.annotations[%s] %q must be a time such as 2026-01-01T06:00:00Z", PausedUntilAnnotation, text)
	}
	return until, nil
}

// Paused reports whether the cluster is paused at a time.
func (c *ApiServerCluster) Paused(now time.Time) bool {
	until, err := c.PausedUntil()
	return err == nil && now.Before(until)
}
