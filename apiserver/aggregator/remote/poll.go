package remote

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"

	"quorate.dev/panics"
)

// poll downloads one kind of document from each server again and again.
type poll struct {
	// Servers whose last download failed have a queue of their own, so that they, which may not respond, do not delay the
	// downloads from others.
	queue, failing workqueue.TypedRateLimitingInterface[Server]
	// sync downloads the document of a server. It returns errForget if the server has no more APIServices.
	sync     func(ctx context.Context, server Server) error
	schedule schedule
	logger   logr.Logger

	mu     sync.Mutex // guards the fields below
	failed sets.Set[Server]
	busy   sets.Set[Server] // being downloaded from; a server can be in both queues
}

// schedule is when and by how many workers a kind of document is downloaded.
type schedule struct {
	// delay is how long a change of an APIService is followed by a download.
	delay time.Duration
	// interval is between successful downloads; retry and retryAtMost are between failed ones.
	interval, retry, retryAtMost time.Duration
	// workers and retriers limit parallel downloads, retriers those from servers whose last download failed. Each may
	// have to wait for its timeout.
	workers, retriers int
}

// busyDelay is how long a download waits for another from the same server.
const busyDelay = time.Second

// The times are kube-aggregator's. It has fewer workers; slow servers would delay the documents of others. At the start
// it requests discovery from all servers at the same time.
var (
	discoverySchedule = schedule{
		interval: time.Minute, retry: 500 * time.Millisecond, retryAtMost: time.Minute, workers: 256, retriers: 64,
	}
	v2Schedule = schedule{
		delay: time.Second, interval: time.Minute, retry: time.Minute, retryAtMost: time.Hour, workers: 4, retriers: 2,
	}
	v3Schedule = schedule{
		delay: time.Second, interval: time.Minute, retry: time.Minute, retryAtMost: time.Hour, workers: 16, retriers: 8,
	}
)

func newPoll(name string, s schedule, clock clock.WithTicker, logger logr.Logger, sync func(context.Context, Server) error) *poll {
	newQueue := func(name string) workqueue.TypedRateLimitingInterface[Server] {
		return workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[Server](s.retry, s.retryAtMost),
			workqueue.TypedRateLimitingQueueConfig[Server]{Name: name, Clock: clock})
	}
	return &poll{
		queue: newQueue(name), failing: newQueue(name + "_failing"), sync: sync, schedule: s, logger: logger,
		failed: sets.Set[Server]{}, busy: sets.Set[Server]{},
	}
}

// changed downloads the document of a server after the delay of the schedule.
func (p *poll) changed(server Server, available bool) {
	p.mu.Lock()
	failed := p.failed.Has(server)
	p.mu.Unlock()
	p.failing.Forget(server)
	if failed && !available {
		p.failing.AddAfter(server, p.schedule.delay)
	} else {
		p.queue.AddAfter(server, p.schedule.delay)
	}
}

// run downloads documents until ctx ends.
func (p *poll) run(ctx context.Context) {
	var running sync.WaitGroup
	running.Go(func() { p.drain(ctx, p.queue, p.schedule.workers) })
	running.Go(func() { p.drain(ctx, p.failing, p.schedule.retriers) })
	<-ctx.Done()
	p.shutDown()
	running.Wait()
}

func (p *poll) shutDown() {
	p.queue.ShutDown()
	p.failing.ShutDown()
}

// drain downloads from the servers of a queue until it is shut down.
func (p *poll) drain(ctx context.Context, queue workqueue.TypedRateLimitingInterface[Server], parallel int) {
	var group errgroup.Group
	group.SetLimit(parallel)
	for {
		server, ended := queue.Get()
		if ended {
			_ = group.Wait() // always nil
			return
		}
		group.Go(func() error {
			defer queue.Done(server)
			if !p.begin(server) {
				queue.AddAfter(server, busyDelay)
				return nil
			}
			p.end(server, panics.Catch(func() error { return p.sync(ctx, server) }))
			return nil
		})
	}
}

// begin reports whether no download from the server is in progress, and marks it as in progress.
func (p *poll) begin(server Server) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.busy.Has(server) {
		return false
	}
	p.busy.Insert(server)
	return true
}

// end queues the next download from the server.
func (p *poll) end(server Server, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.busy.Delete(server)
	p.failed.Delete(server)
	switch {
	case errors.Is(err, errForget):
		p.failing.Forget(server)
	case err != nil:
		p.logger.V(1).Info("Failed to download a document of an extension API server; retrying",
			"namespace", server.Namespace, "service", server.Name, "err", err.Error())
		p.failed.Insert(server)
		p.failing.AddRateLimited(server)
	default:
		p.failing.Forget(server)
		p.queue.AddAfter(server, p.schedule.interval)
	}
}
