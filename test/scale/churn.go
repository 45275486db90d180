package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"quorate.dev/test/scale/wire"
)

const (
	changesOfPod  = 4 // of a pod of the churn: created, running, being deleted, deleted
	readInterval  = 200 * time.Millisecond
	sliceInterval = time.Second
	lifetime      = 5 * time.Second // of pods of the churn
	pendingLimit  = 200             // writes of the churn that may run at the same time
	settleTimeout = 30 * time.Second
)

// churn changes objects at a constant rate, and counts the changes that each watch must receive. The nodes write the
// second and the fourth change of a pod.
type churn struct {
	cluster *cluster
	pods    []atomic.Int64 // successful creations and deletions by node
	slices  atomic.Int64   // successful changes of EndpointSlices
	skipped atomic.Int64   // writes that were left out because too many were running

	next    int          // index of the next pod
	created chan mortal  // pods to delete, in the order of their creation
	pending atomic.Int64 // writes that are running
}

// mortal is a pod of the churn.
type mortal struct {
	name    string
	node    int
	created time.Time
}

func newChurn(c *cluster) *churn {
	return &churn{cluster: c, pods: make([]atomic.Int64, c.options.nodes), created: make(chan mortal, 100_000)}
}

// during runs the churn while do runs, and then waits until all watches have received all changes. It returns the
// number of events that are missing.
func (u *churn) during(ctx context.Context, do func(context.Context) error) (missing int64, err error) {
	if err := u.begin(ctx); err != nil {
		return 0, err
	}
	churning, stop := context.WithCancel(ctx)
	var group sync.WaitGroup
	group.Go(func() { u.changePods(churning, &group) })
	group.Go(func() { u.changeSlices(churning) })
	group.Go(func() { u.readPods(churning) })
	err = do(ctx)
	stop()
	group.Wait()
	if err != nil {
		return 0, err
	}
	err = settle(ctx, u.missing)
	return u.missing(), err
}

// begin waits until the watches have received all earlier changes, and then counts changes and events from 0.
func (u *churn) begin(ctx context.Context) error {
	u.cluster.stats.Writing.Lock()
	defer u.cluster.stats.Writing.Unlock()
	err := settle(ctx, u.missing)
	u.recount()
	return err
}

// settle waits until no event is missing, at most for settleTimeout. Events that are missing then are no error, because
// the result has their number.
func settle(ctx context.Context, missing func() int64) error {
	err := await(ctx, settleTimeout, func() bool { return missing() == 0 })
	if ctx.Err() != nil {
		return err
	}
	return nil
}

// recount starts counting changes and events at 0.
func (u *churn) recount() {
	for _, w := range u.cluster.watches() {
		w.Recount()
	}
	for i := range u.pods {
		u.pods[i].Store(0)
		u.cluster.nodes[i].Statuses.Store(0)
		u.cluster.nodes[i].PodChanges.Store(0)
	}
	u.slices.Store(0)
}

// missing returns the number of events that the watches have not received.
func (u *churn) missing() (missing int64) {
	var pods, statuses int64
	for i, node := range u.cluster.nodes {
		expected := u.pods[i].Load() + node.PodChanges.Load()
		missing += node.Pods.Missing(expected) + node.Own.Missing(node.Statuses.Load()) +
			node.Slices.Missing(u.slices.Load())
		pods, statuses = pods+expected, statuses+node.Statuses.Load()
	}
	for _, observer := range u.cluster.observers {
		missing += observer.pods.Missing(pods) + observer.nodes.Missing(statuses) + observer.slices.Missing(u.slices.Load())
	}
	return missing
}

// changePods creates pods and deletes them later. The group waits for all writes.
func (u *churn) changePods(ctx context.Context, group *sync.WaitGroup) {
	ticker := time.NewTicker(time.Duration(float64(time.Second) * changesOfPod / u.cluster.options.changes))
	defer ticker.Stop()
	var oldest *mortal
	for {
		select {
		case <-ctx.Done():
			if oldest != nil {
				u.created <- *oldest
			}
			return
		case <-ticker.C:
		}
		if u.pending.Load() > pendingLimit {
			u.skipped.Add(1)
			continue
		}
		pod := u.newMortal()
		u.spawn(group, func() { u.create(ctx, pod) })
		if oldest = u.oldest(oldest); oldest != nil && time.Since(oldest.created) > lifetime {
			dying := *oldest
			oldest = nil
			u.spawn(group, func() { u.delete(ctx, dying) })
		}
	}
}

func (u *churn) newMortal() mortal {
	u.next++
	return mortal{fmt.Sprintf("churn-%06d", u.next), rand.IntN(len(u.pods)), time.Now()}
}

// oldest returns the given pod or, if it is nil, the oldest one that is not being deleted.
func (u *churn) oldest(known *mortal) *mortal {
	if known != nil {
		return known
	}
	select {
	case next := <-u.created:
		return &next
	default:
		return nil
	}
}

func (u *churn) spawn(group *sync.WaitGroup, write func()) {
	u.pending.Add(1)
	group.Go(func() {
		defer u.pending.Add(-1)
		write()
	})
}

func (u *churn) create(ctx context.Context, pod mortal) {
	if u.send(ctx, createPod(pod.name, pod.node, time.Now())) {
		u.pods[pod.node].Add(1)
		u.created <- pod
	}
}

// delete begins the graceful deletion of a pod, which its node completes.
func (u *churn) delete(ctx context.Context, pod mortal) {
	r := wire.Request{Method: http.MethodDelete, Path: inPodsNamespace + "/pods/" + pod.name, Accept: wire.Protobuf}
	if u.send(ctx, r) {
		u.pods[pod.node].Add(1)
	}
}

// send sends a request, and reports whether it succeeded. It is completed when the churn ends.
func (u *churn) send(ctx context.Context, r wire.Request) bool {
	response, err := u.cluster.writer(rand.Int()).Do(context.WithoutCancel(ctx), r, 300)
	if err == nil && response.Status >= 300 {
		err = fmt.Errorf("%s %s: status %d: %s", r.Method, r.Path, response.Status, response.Body)
	}
	if err != nil && !u.cluster.stats.Disturbed.Load() {
		u.cluster.stats.Fail(err)
	}
	return err == nil
}

// changeSlices changes an EndpointSlice once in a second.
func (u *churn) changeSlices(ctx context.Context) {
	services := u.cluster.options.services
	every(ctx, sliceInterval, func() {
		if services > 0 && u.send(ctx, changeSlice(rand.IntN(services), time.Now())) {
			u.slices.Add(1)
		}
	})
}

// readPods reads pods.
func (u *churn) readPods(ctx context.Context) {
	count := u.cluster.options.pods()
	every(ctx, readInterval, func() {
		if count > 0 {
			path := inPodsNamespace + "/pods/" + podName(rand.IntN(count))
			u.send(ctx, wire.Request{Method: http.MethodGet, Path: path, Accept: wire.Protobuf})
		}
	})
}
