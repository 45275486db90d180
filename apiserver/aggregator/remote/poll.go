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

// poll downloads one kind of document from each server periodically, and after each change of its APIServices.
type poll struct {
	// queue has the servers to download from. Servers whose last download failed are in failing instead: they may not
	// respond, and must not delay the downloads from other servers. A server can be in both queues.
	queue, failing workqueue.TypedRateLimitingInterface[Server]
	// sync downloads the document of a server. It returns errForget if the server has no APIServices any more.
	sync     func(ctx context.Context, server Server) error
	schedule schedule
	clock    clock.PassiveClock
	logger   logr.Logger

	mu     sync.Mutex // guards the fields below
	failed sets.Set[Server]
	begun  map[Server]time.Time // start of the last download from each server that has APIServices
	busy   sets.Set[Server]     // servers from which a download is in progress
}

// schedule defines when a kind of document is downloaded, and by how many workers.
type schedule struct {
	// pause is the minimum time between the start of a download and the next download that a changed APIService
	// causes. The first change is followed by a download immediately, several changes shortly afterwards by a single
	// one.
	pause time.Duration
	// interval is the time after a successful download. retry is the time after a failed one, which doubles up to
	// retryAtMost.
	interval, retry, retryAtMost time.Duration
	// workers is the number of parallel downloads from servers in queue, and retriers the number of parallel downloads
	// from servers in failing. Each download may take as long as its timeout.
	workers, retriers int
}

// busyDelay is the delay of a download while another download from the same server is in progress.
const busyDelay = time.Second

// The intervals are the same as in kube-aggregator. Three things differ: kube-aggregator has fewer workers, so that
// slow servers can delay the documents of other servers; at the start it requests discovery from all servers at the
// same time; and it downloads the OpenAPI document of a new APIService when a client requests the merged document.
var (
	discoverySchedule = schedule{
		interval: time.Minute, retry: 500 * time.Millisecond, retryAtMost: time.Minute, workers: 256, retriers: 64,
	}
	v2Schedule = schedule{
		pause: 300 * time.Millisecond, interval: time.Minute, retry: time.Minute, retryAtMost: time.Hour,
		workers: 4, retriers: 2,
	}
	v3Schedule = schedule{
		pause: 300 * time.Millisecond, interval: time.Minute, retry: time.Minute, retryAtMost: time.Hour,
		workers: 16, retriers: 8,
	}
)

func newPoll(
	name string, s schedule, clock clock.WithTicker, logger logr.Logger, sync func(context.Context, Server) error,
) *poll {
	newQueue := func(name string) workqueue.TypedRateLimitingInterface[Server] {
		return workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[Server](s.retry, s.retryAtMost),
			workqueue.TypedRateLimitingQueueConfig[Server]{Name: name, Clock: clock})
	}
	return &poll{
		queue: newQueue(name), failing: newQueue(name + "_failing"), sync: sync, schedule: s, clock: clock, logger: logger,
		failed: sets.Set[Server]{}, busy: sets.Set[Server]{}, begun: map[Server]time.Time{},
	}
}

// changed queues a download from a server. The download starts when the pause of the schedule is over. It resets the
// backoff after failures.
func (p *poll) changed(server Server, available bool) {
	p.mu.Lock()
	failed := p.failed.Has(server)
	wait := p.begun[server].Add(p.schedule.pause).Sub(p.clock.Now())
	p.mu.Unlock()
	p.failing.Forget(server)
	if failed && !available {
		p.failing.AddAfter(server, wait)
	} else {
		p.queue.AddAfter(server, wait)
	}
}

// run downloads documents until ctx ends, and then waits for the downloads in progress.
func (p *poll) run(ctx context.Context) {
	var running sync.WaitGroup
	running.Go(func() { p.drain(ctx, p.queue, p.schedule.workers) })
	running.Go(func() { p.drain(ctx, p.failing, p.schedule.retriers) })
	<-ctx.Done()
	p.shutDown()
	running.Wait()
}

// shutDown makes drain return. Servers that are queued are forgotten.
func (p *poll) shutDown() {
	p.queue.ShutDown()
	p.failing.ShutDown()
}

// drain downloads from the servers of a queue until the queue is shut down. A panic of sync is a failed download.
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

// begin marks a download from a server as in progress. It returns false if another download from the server is in
// progress: the server was taken from the other queue. A queue itself never hands out a server twice at the same time.
func (p *poll) begin(server Server) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.busy.Has(server) {
		return false
	}
	p.busy.Insert(server)
	p.begun[server] = p.clock.Now()
	return true
}

// end records the end of a download from a server, and queues the next one.
func (p *poll) end(server Server, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.busy.Delete(server)
	p.failed.Delete(server)
	switch {
	case errors.Is(err, errForget):
		p.failing.Forget(server)
		delete(p.begun, server)
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
