package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"quorate.dev/test/measure"
	"quorate.dev/test/scale/hollow"
	"quorate.dev/test/scale/wire"
)

const (
	writerCount   = 4  // connections that create objects
	writerWidth   = 16 // requests at the same time on each of them
	observerCount = 3
)

// cluster is a hollow cluster on a server.
type cluster struct {
	options   *options
	directory string // directory of the logs of controllers
	server    *measure.Server
	target    *hollow.Target
	stats     *hollow.Stats
	result    *Result
	progress  func(format string, arguments ...any)

	writers   []*hollow.Client // with the administrator's certificate
	nodes     []*hollow.Node
	observers []*observer
	churn     *churn
	reference *reference
	running   sync.WaitGroup
}

// observer is a client that watches everything.
type observer struct {
	*hollow.Client
	pods, nodes, slices *hollow.Watch
}

// newCluster returns a cluster whose clients do not run yet.
func newCluster(
	o *options, server *measure.Server, directory string, progress func(string, ...any),
) (*cluster, error) {
	target, err := hollow.NewTarget(server)
	if err != nil {
		return nil, err
	}
	c := &cluster{
		options: o, directory: directory, server: server, target: target, stats: hollow.NewStats(), result: &Result{},
		progress: func(format string, arguments ...any) { progress(server.Name+": "+format, arguments...) },
	}
	admin, err := target.Admin()
	if err != nil {
		return nil, err
	}
	for range writerCount {
		c.writers = append(c.writers, hollow.NewClient(target, admin, c.stats))
	}
	for i := range observerCount {
		client := hollow.NewClient(target, admin, c.stats)
		c.observers = append(c.observers, &observer{
			Client: client, pods: client.Watch(podsPath, c.noticePod(i)), nodes: client.Watch(nodesPath, c.noticeNode(i)),
			slices: client.Watch(slicesPath, nil),
		})
		client.Watch(servicesPath, nil)
	}
	c.churn, c.reference = newChurn(c), newReference(c)
	return c, c.addNodes()
}

// addNodes issues the certificates of the nodes.
func (c *cluster) addNodes() error {
	for i := range c.options.nodes {
		node, err := hollow.NewNode(c.target, c.stats, nodeName(i), address(i))
		if err != nil {
			return err
		}
		c.nodes = append(c.nodes, node)
	}
	return nil
}

// run runs a client until the context ends.
func (c *cluster) run(ctx context.Context, client *hollow.Client) {
	c.running.Go(func() { client.Run(ctx) })
}

// writer returns the connection for the i-th request.
func (c *cluster) writer(i int) *hollow.Client { return c.writers[i%len(c.writers)] }

// watches returns all watches of the cluster.
func (c *cluster) watches() (all []*hollow.Watch) {
	for _, client := range c.clients() {
		all = append(all, client.Watches()...)
	}
	return all
}

// clients returns the clients that hold watches.
func (c *cluster) clients() (all []*hollow.Client) {
	for _, observer := range c.observers {
		all = append(all, observer.Client)
	}
	for _, node := range c.nodes {
		all = append(all, node.Client)
	}
	return all
}

// sendAll sends count requests, writerCount*writerWidth at the same time.
func (c *cluster) sendAll(ctx context.Context, what string, count int, request func(i int) wire.Request) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next, done atomic.Int64
	var group sync.WaitGroup
	for worker := range writerCount * writerWidth {
		group.Go(func() {
			for i := int(next.Add(1) - 1); i < count && ctx.Err() == nil; i = int(next.Add(1) - 1) {
				if err := c.writer(worker).Send(ctx, request(i)); err != nil {
					cancel(err)
					return
				}
				done.Add(1)
			}
		})
	}
	defer c.report(ctx, func() string { return fmt.Sprintf("%s: %d of %d", what, done.Load(), count) })()
	group.Wait()
	if err := context.Cause(ctx); err != nil {
		return fmt.Errorf("create %s: %w", what, err)
	}
	return nil
}

// report prints a line every ten seconds until the returned function is called.
func (c *cluster) report(ctx context.Context, line func() string) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	c.running.Go(func() { every(ctx, 10*time.Second, func() { c.progress("%s", line()) }) })
	return cancel
}

// every calls do at an interval until the context ends.
func every(ctx context.Context, interval time.Duration, do func()) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			do()
		}
	}
}

// await waits until a condition holds, and returns an error if it does not within the timeout.
func await(ctx context.Context, timeout time.Duration, holds func() bool) error {
	const interval = 20 * time.Millisecond
	return wait.PollUntilContextTimeout(ctx, interval, timeout, true, func(context.Context) (bool, error) {
		return holds(), nil
	})
}
