package v1alpha1

import (
	"fmt"
	"time"
)

// PausedUntilAnnotation pauses an ApiServerCluster until a time in RFC 3339, such as 2026-01-01T06:00:00Z. Until that
// time, the operator does not change the cluster's objects and does not renew its certificates. It still updates the
// status, and still completes the deletion of the cluster. There is no pause without an end: without the operator, lost
// members are not replaced and certificates expire.
const PausedUntilAnnotation = "quorate.dev/paused-until"

// PausedUntil returns the time in the annotation, or the zero time if the cluster does not have the annotation.
func (c *ApiServerCluster) PausedUntil() (time.Time, error) {
	text, ok := c.Annotations[PausedUntilAnnotation]
	if !ok {
		return time.Time{}, nil
	}
	until, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return time.Time{}, fmt.Errorf("metadata.annotations[%s] %q must be a time such as 2026-01-01T06:00:00Z",
			PausedUntilAnnotation, text)
	}
	return until, nil
}

// Paused reports whether now is before the time in PausedUntilAnnotation. An annotation that is not a time does not
// pause.
func (c *ApiServerCluster) Paused(now time.Time) bool {
	until, err := c.PausedUntil()
	return err == nil && now.Before(until)
}
