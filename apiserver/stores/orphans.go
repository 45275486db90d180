package stores

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"quorate.dev/apiserver/crd"
)

const (
	// orphansInterval is the interval between searches for orphans.
	orphansInterval = time.Hour
	// orphansTimeout bounds one search.
	orphansTimeout = time.Minute
)

// newOrphans returns the metric of orphans.
func newOrphans(registerer prometheus.Registerer) prometheus.Gauge {
	return promauto.With(registerer).NewGauge(prometheus.GaugeOpts{
		Name: "quorate_orphaned_objects",
		Help: "[ALPHA] Number of stored custom resources whose CustomResourceDefinition does not exist.",
	})
}

// reportOrphans logs and counts, now and at intervals, the custom resources whose definition does not exist.
func (s *Stores) reportOrphans(ctx context.Context) {
	ticker := s.clock.NewTicker(orphansInterval)
	defer ticker.Stop()
	for {
		s.findOrphans(ctx)
		select {
		case <-ticker.C():
		case <-ctx.Done():
			return
		}
	}
}

func (s *Stores) findOrphans(ctx context.Context) {
	limited, cancel := context.WithTimeout(ctx, orphansTimeout)
	defer cancel()
	found, err := crd.FindOrphans(limited, s.Default.Store)
	if err != nil {
		if ctx.Err() == nil {
			s.logger.Error(err, "Could not search for custom resources without a definition")
		}
		return
	}
	total := int64(0)
	for _, orphans := range found {
		total += orphans.Objects
		s.logger.Error(nil,
			"Found custom resources whose CustomResourceDefinition does not exist; create and delete the definition to delete "+
				"them", "resource", orphans.GroupResource.String(), "objects", orphans.Objects)
	}
	s.orphans.Set(float64(total))
}
