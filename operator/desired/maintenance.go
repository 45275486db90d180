package desired

import (
	"errors"
	"fmt"
	"time"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/schedule"
)

// minWindow is the shortest duration of a maintenance window. A shorter one may not suffice to restart one replica.
const minWindow = 10 * time.Minute

// Windows returns the maintenance windows of a cluster, and the errors in their spec.
func Windows(cluster *v1alpha1.ApiServerCluster) (windows []schedule.Window, err error) {
	for i, w := range cluster.Spec.Maintenance.Windows {
		starts, invalid := schedule.Parse(w.Schedule, w.TimeZone)
		if invalid == nil && w.Duration.Duration < minWindow {
			invalid = fmt.Errorf("duration %s must be at least %s", w.Duration.Duration, minWindow)
		}
		if invalid != nil {
			err = errors.Join(err, fmt.Errorf("spec.maintenance.windows[%d]: %w", i, invalid))
			continue
		}
		windows = append(windows, schedule.Window{Starts: starts, Duration: w.Duration.Duration})
	}
	return windows, err
}
