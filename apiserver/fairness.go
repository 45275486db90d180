package apiserver

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/util/flowcontrol"
	flowmetrics "k8s.io/apiserver/pkg/util/flowcontrol/metrics"
	flowrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
	"k8s.io/client-go/tools/cache"

	"quorate.dev/apiserver/filters"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/router"
)

// composeFairness sets up priority and fairness. Both limits of requests in flight together are the seats of all levels.
func (s *Server) composeFairness() {
	limits := s.config.Limits
	if !limits.PriorityAndFairness || limits.MaxRequestsInFlight+limits.MaxMutatingRequestsInFlight <= 0 {
		return
	}
	flowmetrics.Register()
	s.flows = flowcontrol.New(s.informers, s.client.FlowcontrolV1(), limits.MaxRequestsInFlight+limits.MaxMutatingRequestsInFlight)
}

// fairness returns the options of the filter, nil if the limits of requests in flight apply.
func (s *Server) fairness(holder *resource.CatalogHolder) *filters.Fairness {
	if s.flows == nil {
		return nil
	}
	objects := collectionSizes{catalog: holder, size: s.registry.Size}
	return &filters.Fairness{
		Flows: s.flows,
		Estimate: flowrequest.NewWorkEstimator(
			objects.stats, s.flows.GetInterestedWatchCount, flowrequest.DefaultWorkEstimatorConfig(), s.flows.GetMaxSeats),
	}
}

// collectionSizes tells upstream's estimator how large collections are.
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

// fairnessHooks return the hooks of priority and fairness in kube-apiserver's order.
func (s *Server) fairnessHooks() []hook {
	if s.flows == nil {
		return nil
	}
	return []hook{
		{name: "priority-and-fairness-config-consumer", after: []string{hookStorage}, run: s.followFlows},
		{name: "priority-and-fairness-filter", run: await(s.composed)},
	}
}

// followFlows follows flow schemas and priority levels until ctx ends. Until they are known, the mandatory ones apply.
func (s *Server) followFlows(ctx context.Context, done func()) error {
	levels, schemas := s.informers.Flowcontrol().V1().PriorityLevelConfigurations(), s.informers.Flowcontrol().V1().FlowSchemas()
	go func() {
		if cache.WaitForCacheSync(ctx.Done(), levels.Informer().HasSynced, schemas.Informer().HasSynced) {
			done()
		}
	}()
	if err := s.flows.Run(ctx.Done()); err != nil && ctx.Err() == nil {
		return fmt.Errorf("priority and fairness: %w", err)
	}
	return nil
}

// fairnessRoutes adds the paths that show queues and requests.
func (s *Server) fairnessRoutes(r *router.Router) {
	if s.flows == nil {
		return
	}
	dumps := mux.NewPathRecorderMux("priority-and-fairness")
	s.flows.Install(dumps)
	r.HandlePrefix("/debug/api_priority_and_fairness/", dumps)
}
