package measure

import (
	"context"
	"time"
)

// Pause waits for a duration. It returns the error of the context if that ends earlier.
func Pause(ctx context.Context, duration time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(duration):
		return nil
	}
}
