package remote

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
)

// poll downloads one kind of document from each server again and again.
type poll struct {
	queue workqueue.TypedRateLimitingInterface[Server]
	// sync downloads the document of a server. It returns errForget if the server has no more APIServices.
	sync     func(ctx context.Context, server Server) error
	interval time.Duration
	logger   logr.Logger
}

// schedule is when and by how many workers a kind of document is downloaded.
type schedule struct {
	// delay is how long a change of an APIService is followed by a download.
	delay time.Duration
	// interval is between successful downloads; retry and retryAtMost are between failed ones.
	interval, retry, retryAtMost time.Duration
	// workers limits parallel downloads. Each may have to wait for its timeout.
	workers int
}

// The times are kube-aggregator's. It has fewer workers; slow servers would delay the documents of others.
var (
	discoverySchedule = schedule{
		interval: time.Minute, retry: 500 * time.Millisecond, retryAtMost: time.Minute, workers: 16,
	}
	v2Schedule = schedule{
		delay: time.Second, interval: time.Minute, retry: time.Minute, retryAtMost: time.Hour, workers: 4,
	}
	v3Schedule = schedule{
		delay: time.Second, interval: time.Minute, retry: time.Minute, retryAtMost: time.Hour, workers: 16,
	}
)

func newPoll(name string, s schedule, clock clock.WithTicker, logger logr.Logger, sync func(context.Context, Server) error) *poll {
	return &poll{
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[Server](s.retry, s.retryAtMost),
			workqueue.TypedRateLimitingQueueConfig[Server]{Name: name, Clock: clock}),
		sync: sync, interval: s.interval, logger: logger,
	}
}

// changed downloads the document of a server after the delay.
func (p *poll) changed(server Server, delay time.Duration) {
	p.queue.Forget(server)
	p.queue.AddAfter(server, delay)
}

// run downloads documents until ctx ends.
func (p *poll) run(ctx context.Context, workers int) {
	var running sync.WaitGroup
	for range workers {
		running.Go(func() {
			for p.next(ctx) {
			}
		})
	}
	<-ctx.Done()
	p.queue.ShutDown()
	running.Wait()
}

// next downloads the document of the next server. It returns false at the end.
func (p *poll) next(ctx context.Context) bool {
	server, ended := p.queue.Get()
	if ended {
		return false
	}
	defer p.queue.Done(server)
	switch err := p.sync(ctx, server); {
	case errors.Is(err, errForget):
		p.queue.Forget(server)
	case err != nil:
		p.logger.V(1).Info("Failed to download a document of an extension API server; retrying",
			"namespace", server.Namespace, "service", server.Name, "err", err.Error())
		p.queue.AddRateLimited(server)
	default:
		p.queue.Forget(server)
		p.queue.AddAfter(server, p.interval)
	}
	return true
}
