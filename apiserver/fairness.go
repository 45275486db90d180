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
	"quorate.dev/apiserver/startup"
)

// composeFairness returns the controller of priority and fairness, or nil if the limits of requests in flight apply.
// The sum of both limits of requests in flight is the number of seats.
func (s *cluster) composeFairness() *flowcontrol.Controller {
	limits := s.config.Limits
	if !limits.PriorityAndFairness {
		return nil
	}
	objects := s.informers.Flowcontrol().V1()
	sizes := collectionSizes{catalog: s.catalog, size: s.registry.Size}
	return flowcontrol.New(flowcontrol.Options{
		Client: s.client.FlowcontrolV1(), Schemas: objects.FlowSchemas(), Levels: objects.PriorityLevelConfigurations(),
		Seats: limits.MaxRequestsInFlight + limits.MaxMutatingRequestsInFlight, Stats: sizes.stats,
		Clock: clock.RealClock{}, Logger: s.logger.WithName("flowcontrol"), Registerer: s.metrics,
	})
}

// collectionSizes provides the sizes of collections to upstream's work estimator.
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
// order. The filters need no background work, and neither do the sizes of collections, which the watch cache provides.
func (s *cluster) fairnessHooks() startup.Sequence {
	if s.flows == nil {
		return startup.Sequence{{Name: "max-in-flight-filter", Run: startup.Await(s.loopback.ready)}}
	}
	storage := []string{hookStorage}
	return startup.Sequence{
		{Name: "priority-and-fairness-config-consumer", After: storage, Run: s.followFlows},
		{Name: "priority-and-fairness-filter", Run: startup.Await(s.loopback.ready)},
		{Name: "storage-object-count-tracker-hook", After: storage, Run: startup.Begin(func(context.Context) {})},
	}
}

// followFlows follows FlowSchemas and PriorityLevelConfigurations until ctx ends. Until they are known, the mandatory
// objects apply. The hook is done when they are known.
func (s *cluster) followFlows(ctx context.Context, done func()) error {
	go func() {
		if cache.WaitForCacheSync(ctx.Done(), s.flows.Synced) {
			done()
		}
	}()
	return s.flows.Run(ctx)
}

// fairnessRoutes registers the paths that show queues and requests.
func fairnessRoutes(r *router.Router, flows *flowcontrol.Controller) {
	if flows == nil {
		return
	}
	dumps := flows.Debug()
	for _, name := range []string{"dump_priority_levels", "dump_queues", "dump_requests"} {
		r.Handle("/debug/api_priority_and_fairness/"+name, dumps)
	}
}
