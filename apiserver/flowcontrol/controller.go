package flowcontrol

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	upstream "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/util/flowcontrol"
	"k8s.io/apiserver/pkg/util/flowcontrol/metrics"
	fcrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
	"k8s.io/client-go/informers"
	listers "k8s.io/client-go/informers/flowcontrol/v1"
	"k8s.io/client-go/kubernetes"
	flowcontrolclient "k8s.io/client-go/kubernetes/typed/flowcontrol/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/request"
)

// Options configure a Controller.
type Options struct {
	// Client is used to update the status of FlowSchemas.
	Client  flowcontrolclient.FlowcontrolV1Interface
	Schemas listers.FlowSchemaInformer
	Levels  listers.PriorityLevelConfigurationInformer
	// Seats is the number of seats of the server, which are divided among the priority levels.
	Seats int
	// Stats returns the number and the average size of the objects of a resource, such as "pods" or
	// "leases.coordination.k8s.io". The error is ObjectCountNotFoundErr if they are unknown. The estimate of a list's
	// work depends on them.
	Stats func(resource string) (storage.Stats, error)

	Clock      clock.WithDelayedExecution
	Logger     logr.Logger
	Registerer prometheus.Registerer
}

// Controller assigns requests to flows and priority levels, and executes, queues or rejects them. All methods are
// safe for concurrent use.
type Controller struct {
	upstream flowcontrol.Interface
	estimate fcrequest.WorkEstimatorFunc
	dropped  flowcontrol.DroppedRequestsTracker
	schemas  listers.FlowSchemaInformer
	levels   listers.PriorityLevelConfigurationInformer
	// digest makes upstream's controller digest the configuration again.
	digest  *observed
	logger  logr.Logger
	metrics *flowMetrics

	// generation counts the changes of the configuration and the resets of metrics. A table of an earlier generation
	// is outdated.
	generation atomic.Uint64
	current    atomic.Pointer[table]

	// mu guards sets and serializes replacements of current. It is acquired before the lock of a queue set.
	mu sync.Mutex
	// sets has the queue sets by the names of their priority levels, including deleted levels that still have
	// requests.
	sets map[string]*queueSet
}

// New returns a controller with the mandatory configuration. The caller must start the informers, and call Run. New
// registers upstream's metrics of the configuration in the process-wide registry.
func New(options Options) *Controller {
	metrics.Register()
	c := &Controller{
		dropped: flowcontrol.NewDroppedRequestsTracker(), schemas: options.Schemas, levels: options.Levels,
		logger: options.Logger, sets: map[string]*queueSet{},
	}
	c.metrics = newFlowMetrics(options.Registerer, c)
	c.digest = &observed{SharedIndexInformer: options.Schemas.Informer()}
	c.upstream = flowcontrol.NewTestable(flowcontrol.TestableConfig{
		Name: "Controller", Clock: options.Clock, AsFieldManager: flowcontrol.ConfigConsumerAsFieldManager,
		FoundToDangling: func(found bool) bool { return !found },
		InformerFactory: c.informers(), FlowcontrolClient: options.Client, ServerConcurrencyLimit: options.Seats,
		ReqsGaugeVec:      metrics.PriorityLevelConcurrencyGaugeVec,
		ExecSeatsGaugeVec: metrics.PriorityLevelExecutionSeatsGaugeVec,
		QueueSetFactory: &factory{
			clock: options.Clock, configured: c.configured,
			after: func(d time.Duration, f func()) { options.Clock.AfterFunc(d, f) },
		},
	})
	c.estimate = fcrequest.NewWorkEstimator(options.Stats, c.upstream.GetInterestedWatchCount,
		fcrequest.DefaultWorkEstimatorConfig(), c.upstream.GetMaxSeats)
	return c
}

// informers returns a factory with the two informers that upstream's controller uses. The factory is not started.
func (c *Controller) informers() informers.SharedInformerFactory {
	factory := informers.NewSharedInformerFactory(nil, 0)
	factory.InformerFor(&flowcontrolv1.FlowSchema{}, func(kubernetes.Interface, time.Duration) cache.SharedIndexInformer {
		return c.digest
	})
	factory.InformerFor(&flowcontrolv1.PriorityLevelConfiguration{}, func(
		kubernetes.Interface, time.Duration,
	) cache.SharedIndexInformer {
		return c.levels.Informer()
	})
	return factory
}

// observed is an informer that remembers the event handler of upstream's controller.
type observed struct {
	cache.SharedIndexInformer
	handler cache.ResourceEventHandler
}

// AddEventHandler implements cache.SharedInformer.
func (o *observed) AddEventHandler(handler cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	o.handler = handler
	return o.SharedIndexInformer.AddEventHandler(handler)
}

// again calls the event handler, so that upstream's controller digests the configuration as it does after every
// event.
func (o *observed) again() { o.handler.OnDelete(&flowcontrolv1.FlowSchema{}) }

// configured is called by upstream's controller, under its lock, when it has configured a queue set, also when only
// the number of seats has changed.
func (c *Controller) configured(name string, set *queueSet) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sets[name] = set
	c.generation.Add(1)
}

// Run runs upstream's controller until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	if err := c.upstream.Run(ctx.Done()); err != nil && ctx.Err() == nil {
		return fmt.Errorf("priority and fairness: %w", err)
	}
	return nil
}

// Synced reports whether all objects that existed when the informers were started have been read.
func (c *Controller) Synced() bool {
	return c.schemas.Informer().HasSynced() && c.levels.Informer().HasSynced()
}

// Debug returns the handler of upstream's debug endpoints (/debug/api_priority_and_fairness).
func (c *Controller) Debug() http.Handler {
	endpoints := mux.NewPathRecorderMux("flowcontrol")
	c.upstream.Install(endpoints)
	return endpoints
}

// Match returns the flow of a request. The record's user must be set. The first call after a change of the
// configuration builds the next table.
func (c *Controller) Match(record *request.Record) *Flow {
	return c.table().match(record.User, &record.Info)
}

// Start gives a request its seats or adds it to a queue. It returns nil if the request is rejected. record is the
// context of r. Start does not wait.
func (c *Controller) Start(r *http.Request, record *request.Record, flow *Flow) *Request {
	started := &Request{flow: flow, info: &record.Info, user: record.User, onIdle: c.onIdle}
	started.distinguisher = flow.distinguisher(record.User, &record.Info)
	started.estimate = c.work(r, &record.Info, flow)
	flow.countEstimated(started)
	if reason, ok := flow.set.start(started, flow.hash(started.distinguisher)); !ok {
		flow.countRejected(reason)
		started.idle()
		return nil
	}
	flow.countEnqueued(started)
	return started
}

// work returns the estimated work of a request. A get takes one seat, as upstream's estimator also says.
func (c *Controller) work(r *http.Request, info *upstream.RequestInfo, flow *Flow) fcrequest.WorkEstimate {
	if info.Verb == "get" {
		return fcrequest.WorkEstimate{InitialSeats: 1}
	}
	return c.estimate(r, flow.Schema, flow.Level)
}

// onIdle is called when the last request of a deleted priority level has finished. It makes upstream's controller
// remove the level.
func (c *Controller) onIdle(*queueSet) { c.digest.again() }

// RegisterWatch registers a watch request until forget is called. The estimated work of a write grows with the number
// of watches that it notifies.
func (c *Controller) RegisterWatch(r *http.Request) (forget func()) {
	return c.upstream.RegisterWatch(r)
}

// RetryAfter counts a rejected request, and returns the number of seconds after which its client should retry. The
// number grows while many requests of the priority level are rejected.
func (c *Controller) RetryAfter(flow *Flow) int64 {
	c.dropped.RecordDroppedRequest(flow.Level)
	return c.dropped.GetRetryAfter(flow.Level)
}
