package flowcontrol

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	upstream "k8s.io/apiserver/pkg/endpoints/request"
	fq "k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing"
	"k8s.io/apiserver/pkg/util/flowcontrol/metrics"
	fcrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
	"k8s.io/apiserver/pkg/util/shufflesharding"
	"k8s.io/utils/clock"
)

// IsIdle implements fairqueuing.QueueSet.
func (s *queueSet) IsIdle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waiting == 0 && s.running == 0
}

// StartRequest implements fairqueuing.QueueSet. Upstream's controller would call it to handle a request; here only
// tests do, which compare the decisions with upstream's.
func (s *queueSet) StartRequest(ctx context.Context, estimate *fcrequest.WorkEstimate, hash uint64,
	distinguisher, schema string, info, who any, _ fq.QueueNoteFn,
) (fq.Request, bool) {
	r := &Request{flow: &Flow{Schema: schema, set: s}, distinguisher: distinguisher, estimate: *estimate}
	r.info, _ = info.(*upstream.RequestInfo)
	r.user, _ = who.(user.Info)
	if _, ok := s.start(r, hash); !ok {
		return nil, s.IsIdle()
	}
	return finisher(func(execute func()) bool {
		if r.Wait(ctx, time.Time{}) {
			defer r.Finish()
			execute()
		}
		return s.IsIdle()
	}), false
}

// finisher implements fairqueuing.Request.
type finisher func(execute func()) (idle bool)

// Finish implements fairqueuing.Request.
func (f finisher) Finish(execute func()) bool { return f(execute) }

// factory creates the queue sets for upstream's controller.
type factory struct {
	clock clock.PassiveClock
	// after calls a function after a delay, in another goroutine.
	after func(time.Duration, func())
	// configured is called after each change of the configuration of a queue set, without the lock of the queue set.
	configured func(name string, set *queueSet)
}

// completer is a changed configuration of a queue set that has been checked but is not in effect yet.
type completer struct {
	set     *queueSet
	queuing fq.QueuingConfig
	dealer  *shufflesharding.Dealer
}

// BeginConstruction implements fairqueuing.QueueSetFactory.
func (f *factory) BeginConstruction(queuing fq.QueuingConfig, pair metrics.RatioedGaugePair, seats metrics.RatioedGauge,
	demand metrics.Gauge,
) (fq.QueueSetCompleter, error) {
	set := &queueSet{
		clock: f.clock, after: f.after, lastSync: f.clock.Now(), configured: f.configured,
		waitingGauge: pair.RequestsWaiting, executingGauge: pair.RequestsExecuting, seatsGauge: seats, demandGauge: demand,
	}
	return set.BeginConfigChange(queuing)
}

// BeginConfigChange implements fairqueuing.QueueSet.
func (s *queueSet) BeginConfigChange(queuing fq.QueuingConfig) (fq.QueueSetCompleter, error) {
	c := &completer{set: s, queuing: queuing}
	if queuing.DesiredNumQueues > 0 {
		var err error
		if c.dealer, err = shufflesharding.NewDealer(queuing.DesiredNumQueues, queuing.HandSize); err != nil {
			return nil, fmt.Errorf("invalid shuffle sharding: %w", err)
		}
	}
	return c, nil
}

// Complete implements fairqueuing.QueueSetCompleter.
func (c *completer) Complete(dispatching fq.DispatchingConfig) fq.QueueSet {
	c.set.configure(c.queuing, c.dealer, dispatching)
	c.set.configured(c.queuing.Name, c.set)
	return c.set
}
