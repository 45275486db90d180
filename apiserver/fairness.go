package apiserver

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	flowrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/flowcontrol"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/router"
)

// composeFairness sets up priority and fairness. Both limits of requests in flight together are the seats of all levels.
func (s *Server) composeFairness() {
	limits := s.config.Limits
	if !limits.PriorityAndFairness {
		return
	}
	objects := s.informers.Flowcontrol().V1()
	sizes := collectionSizes{catalog: s.catalogs.holder, size: s.registry.Size}
	s.flows = flowcontrol.New(flowcontrol.Options{
		Client: s.client.FlowcontrolV1(), Schemas: objects.FlowSchemas(), Levels: objects.PriorityLevelConfigurations(),
		Seats: limits.MaxRequestsInFlight + limits.MaxMutatingRequestsInFlight, Stats: sizes.stats,
		Clock: clock.RealClock{}, Logger: s.logger.WithName("flowcontrol"), Registerer: s.metrics,
	})
}

// collectionSizes reports the sizes of collections to upstream's estimator.
type collectionSizes struct {
	catalog *resource.CatalogHolder
	size    func(resource.Match) (objects, mean int64)
}

func (c collectionSizes) stats(name string) (storage.Stats, error) {
	match, ok := c.catalog.Current().Find(schema.ParseGroupResource(name))
	if !ok || match.StoragePath == "" {
		return storage.Stats{}, flowrequest.ObjectCountNotFoundErr
	}
	objects, mean := c.size(match)
	return storage.Stats{ObjectCount: objects, EstimatedAverageObjectSizeBytes: mean}, nil
}

// fairnessHooks returns the hooks of priority and fairness, or of the limits of requests in flight, in kube-apiserver's
// order. Nothing has to be started for the filters and for the sizes of collections, which the watch cache knows.
func (s *Server) fairnessHooks() []hook {
	if s.flows == nil {
		return []hook{{name: "max-in-flight-filter", run: await(s.composed)}}
	}
	storage := []string{hookStorage}
	return []hook{
		{name: "priority-and-fairness-config-consumer", after: storage, run: s.followFlows},
		{name: "priority-and-fairness-filter", run: await(s.composed)},
		{name: "storage-object-count-tracker-hook", after: storage, run: begin(func(context.Context) {})},
	}
}

// followFlows follows flow schemas and priority levels until ctx ends. Until they are known, the mandatory ones apply.
func (s *Server) followFlows(ctx context.Context, done func()) error {
	go func() {
		if cache.WaitForCacheSync(ctx.Done(), s.flows.Synced) {
			done()
		}
	}()
	return s.flows.Run(ctx)
}

// fairnessRoutes adds the paths that show queues and requests.
func (s *Server) fairnessRoutes(r *router.Router) {
	if s.flows == nil {
		return
	}
	dumps := s.flows.Debug()
	for _, name := range []string{"dump_priority_levels", "dump_queues", "dump_requests"} {
		r.Handle("/debug/api_priority_and_fairness/"+name, dumps)
	}
}
