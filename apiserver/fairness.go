package apiserver

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	fcrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/flowcontrol"
	"quorate.dev/apiserver/router"
)

// composeFlowControl composes priority and fairness, unless it is disabled. Seats are what --max-requests-inflight and
// --max-mutating-requests-inflight permit together.
func (s *Server) composeFlowControl() {
	limits := s.config.Limits
	if !limits.PriorityAndFairness {
		return
	}
	objects := s.informers.Flowcontrol().V1()
	s.flowControl = flowcontrol.New(flowcontrol.Options{
		Client: s.client.FlowcontrolV1(), Schemas: objects.FlowSchemas(), Levels: objects.PriorityLevelConfigurations(),
		Seats: limits.MaxRequestsInFlight + limits.MaxMutatingRequestsInFlight, Stats: s.objectStats,
		Clock: clock.RealClock{}, Logger: s.logger.WithName("flowcontrol"), Registerer: s.metrics,
	})
}

// objectStats returns the number and the average size of the objects of a resource. They are unknown until the resource
// is cached.
func (s *Server) objectStats(name string) (storage.Stats, error) {
	definition, ok := s.catalogs.holder.Current().Find(schema.ParseGroupResource(name))
	if !ok {
		return storage.Stats{}, fcrequest.ObjectCountNotFoundErr
	}
	objects, bytes, ok := s.caches.Stats(definition.StoragePath)
	if !ok {
		return storage.Stats{}, fcrequest.ObjectCountNotFoundErr
	}
	stats := storage.Stats{ObjectCount: objects}
	if objects > 0 {
		stats.EstimatedAverageObjectSizeBytes = max(bytes/objects, 1)
	}
	return stats, nil
}

// fairnessHooks returns the post-start hooks of priority and fairness, or of the limits of requests in flight. Nothing
// has to be started for the filters and for the numbers of objects, which the watch cache knows.
func (s *Server) fairnessHooks() []hook {
	storage, nothing := []string{hookStorage}, begin(func(context.Context) {})
	if s.flowControl == nil {
		return []hook{{name: "max-in-flight-filter", run: nothing}}
	}
	return []hook{
		{name: "priority-and-fairness-config-consumer", after: storage, run: s.runFlowControl},
		{name: "priority-and-fairness-filter", run: nothing},
		{name: "storage-object-count-tracker-hook", after: storage, run: nothing},
	}
}

// runFlowControl follows the configuration of priority and fairness until ctx ends. The hook is done when the objects
// that existed at the start are in force.
func (s *Server) runFlowControl(ctx context.Context, done func()) error {
	return together(ctx, s.flowControl.Run, func(ctx context.Context) error {
		const interval = 10 * time.Millisecond
		for !s.flowControl.Synced() {
			select {
			case <-s.clock.After(interval):
			case <-ctx.Done():
				return nil
			}
		}
		done()
		return nil
	})
}

// fairnessRoutes adds the debug endpoints of priority and fairness.
func (s *Server) fairnessRoutes(r *router.Router) {
	if s.flowControl == nil {
		return
	}
	endpoints := s.flowControl.Debug()
	for _, dump := range []string{"dump_priority_levels", "dump_queues", "dump_requests"} {
		r.Handle("/debug/api_priority_and_fairness/"+dump, endpoints)
	}
}
