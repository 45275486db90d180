package hollow

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"quorate.dev/test/scale/wire"
)

// Intervals of a kubelet.
type Intervals struct {
	Lease  time.Duration // between renewals of the lease
	Status time.Duration // between reports of a status that has not changed
}

// Node is a kubelet with kube-proxy, as the user of the node.
type Node struct {
	*Client
	name string
	ip   string

	Own, Pods, Slices *Watch
	// Statuses and PodChanges count the successful changes of the Node and of its pods by this node.
	Statuses, PodChanges atomic.Int64

	stopped atomic.Bool // the node sends no leases and no status
	lease   lease

	returned chan struct{} // signals the end of an outage

	mu      sync.Mutex
	pods    []pod // pods that the node has to write
	waiting chan struct{}
}

// pod is a pod that has to be started or removed.
type pod struct {
	namespace, name, uid string
	remove               bool
}

// NewNode returns a node that is not running. Its pods have its IP address.
func NewNode(target *Target, stats *Stats, name, ip string) (*Node, error) {
	configuration, err := target.User("system:node:"+name, "system:nodes")
	if err != nil {
		return nil, err
	}
	n := &Node{
		Client: NewClient(target, configuration, stats), name: name, lease: lease{name: name},
		ip: ip, waiting: make(chan struct{}, 1), returned: make(chan struct{}, 1),
	}
	n.Own = n.Watch("/api/v1/nodes?fieldSelector=metadata.name%3D"+name, nil)
	n.Pods = n.Watch("/api/v1/pods?fieldSelector=spec.nodeName%3D"+name, n.enqueue)
	n.Watch("/api/v1/services", nil)
	n.Slices = n.Watch("/apis/discovery.k8s.io/v1/endpointslices", nil)
	n.Watch("/apis/storage.k8s.io/v1/csidrivers", nil)
	return n, nil
}

// enqueue notes a pod that has arrived at the node, or is to be removed from it.
func (n *Node) enqueue(e *Event) {
	if e.Type == "DELETED" {
		return
	}
	phase, err := wire.Field(e.Object, 3, 1)
	if err != nil || !e.Meta.Deleting && string(phase) != "Pending" {
		return
	}
	n.mu.Lock()
	n.pods = append(n.pods, pod{
		string(e.Meta.Namespace), string(e.Meta.Name), string(e.Meta.UID), e.Meta.Deleting,
	})
	n.mu.Unlock()
	select {
	case n.waiting <- struct{}{}:
	default:
	}
}

// Work renews the lease, reports the status and writes the states of pods until the context ends.
func (n *Node) Work(ctx context.Context, intervals Intervals) {
	lease := time.NewTimer(rand.N(intervals.Lease))
	defer lease.Stop()
	status := time.NewTimer(rand.N(intervals.Status))
	defer status.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-lease.C:
			n.report(ctx, n.renew)
			lease.Reset(jitter(intervals.Lease))
		case <-status.C:
			n.report(ctx, n.sendStatus)
			status.Reset(jitter(intervals.Status))
		case <-n.returned:
			n.report(ctx, n.renew)
			n.report(ctx, n.sendStatus)
		case <-n.waiting:
			n.writePods(ctx)
		}
	}
}

// jitter returns an interval that is up to 4 % longer or shorter, as the intervals of kubelets are.
func jitter(interval time.Duration) time.Duration {
	return interval + time.Duration((rand.Float64()-0.5)*0.08*float64(interval))
}

// Stop makes the node send no leases and no status, as if it were out of order.
func (n *Node) Stop() { n.stopped.Store(true) }

// Resume makes the node send leases and its status again, beginning immediately.
func (n *Node) Resume() {
	n.stopped.Store(false)
	select {
	case n.returned <- struct{}{}:
	default:
	}
}

// report sends a lease or a status. A kubelet that is not connected tries again at the next interval.
func (n *Node) report(ctx context.Context, send func(context.Context) error) {
	if n.stopped.Load() {
		return
	}
	n.stats.Writing.RLock()
	defer n.stats.Writing.RUnlock()
	if err := send(ctx); err != nil && ctx.Err() == nil && !n.stats.Disturbed.Load() {
		n.stats.Fail(fmt.Errorf("node %s: %w", n.name, err))
	}
}

// writePods writes the states of all waiting pods.
func (n *Node) writePods(ctx context.Context) {
	for ctx.Err() == nil {
		n.mu.Lock()
		if len(n.pods) == 0 {
			n.pods = nil
			n.mu.Unlock()
			return
		}
		next := n.pods[0]
		n.pods = n.pods[1:]
		n.mu.Unlock()
		n.writePod(ctx, next)
	}
}

// writePod writes the state of a pod. As kubelets do, it tries again until the server has received the state.
func (n *Node) writePod(ctx context.Context, p pod) {
	for attempt := 1; ; attempt++ {
		err := n.tryPod(ctx, p)
		if err == nil || ctx.Err() != nil {
			return
		}
		if !n.stats.Disturbed.Load() {
			n.stats.Fail(fmt.Errorf("node %s: %w", n.name, err))
		}
		if !pause(ctx, backoff(attempt)) {
			return
		}
	}
}

// tryPod sends the state of a pod once.
func (n *Node) tryPod(ctx context.Context, p pod) error {
	n.stats.Writing.RLock()
	defer n.stats.Writing.RUnlock()
	request := n.podRequest(p)
	response, err := n.Do(ctx, request, 300)
	switch {
	case err != nil:
		return err
	case response.Status < 300:
		n.PodChanges.Add(1)
		return nil
	case response.Status == http.StatusNotFound || response.Status == http.StatusConflict:
		return nil // another change of the pod follows, or was the last one
	}
	return statusError(request, response)
}

// statusError returns the error of a response with an unexpected status.
func statusError(r wire.Request, response wire.Response) error {
	return fmt.Errorf("%s %s: status %d: %s", r.Method, r.Path, response.Status, bytes.TrimSpace(response.Body))
}
