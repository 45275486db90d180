package main

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"quorate.dev/test/measure"
	"quorate.dev/test/scale/hollow"
	"quorate.dev/test/scale/wire"
)

func podName(i int) string { return fmt.Sprintf("pod-%07d", i) }

// simulate runs all phases on a cluster. The clients end with it.
func (c *cluster) simulate(ctx context.Context) error {
	ctx, stop := c.begin(ctx)
	defer stop()
	for _, phase := range []func(context.Context) error{c.create, c.connect, c.hold, c.storms, c.control} {
		if err := phase(ctx); err != nil {
			return fmt.Errorf("%s: %w", c.server.Name, err)
		}
	}
	return nil
}

// begin connects the writers. The returned function ends all clients, and waits for their end.
func (c *cluster) begin(ctx context.Context) (running context.Context, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	for _, writer := range c.writers {
		c.run(ctx, writer)
	}
	return ctx, func() {
		cancel()
		c.running.Wait()
	}
}

// create stores the objects of the cluster.
func (c *cluster) create(ctx context.Context) error {
	for _, r := range prerequisites() {
		if err := c.writer(0).Send(ctx, r); err != nil {
			return err
		}
	}
	o := c.options
	_, err := c.measured(ctx, "create", func(ctx context.Context) error {
		if err := c.sendAll(ctx, "nodes", o.nodes, createNode); err != nil {
			return err
		}
		if err := c.sendAll(ctx, "services", o.services, createService); err != nil {
			return err
		}
		if err := c.sendAll(ctx, "EndpointSlices", o.services, createSlice); err != nil {
			return err
		}
		return c.sendAll(ctx, "pods", o.pods(), func(i int) wire.Request {
			return createPod(podName(i), i%o.nodes, time.Now())
		})
	})
	if err != nil {
		return err
	}
	c.addWrites("create")
	_, err = c.measured(ctx, "start pods", func(ctx context.Context) error {
		return c.sendAll(ctx, "pod statuses", o.pods(), c.startPod)
	})
	c.addWrites("start pods")
	return err
}

// startPod returns the request with which the kubelet of a pod reports that it runs.
func (c *cluster) startPod(i int) wire.Request {
	return wire.Request{
		Method: http.MethodPatch, Path: inPodsNamespace + "/pods/" + podName(i) + "/status", Accept: wire.Protobuf,
		ContentType: wire.StrategicMergePatch, Body: hollow.RunningPatch("", address(i%c.options.nodes), time.Now()),
	}
}

// addWrites adds the latency of writes to the result. It is no objective, since the writers send as fast as they can.
func (c *cluster) addWrites(phase string) {
	c.result.addTimes(phase, "write", &c.stats.Timings().Writes)
}

// connect starts all clients at the same time, and waits until each of their watches has received its initial state.
func (c *cluster) connect(ctx context.Context) error {
	clients := c.clients()
	total := int64(len(c.watches()))
	resident, _, err := c.memory()
	if err != nil {
		return err
	}
	goroutines := c.goroutines(ctx)
	_, err = c.measured(ctx, "connect", func(ctx context.Context) error {
		for _, client := range clients {
			c.run(ctx, client)
		}
		return c.awaitSync(ctx, total)
	})
	if err != nil {
		return err
	}
	c.addSync("connect", total)
	c.addLost("connect")
	return c.addConnections(ctx, resident, goroutines)
}

// awaitSync waits until the watches are in sync, or the timeout for that has passed.
func (c *cluster) awaitSync(ctx context.Context, total int64) error {
	defer c.report(ctx, func() string {
		return fmt.Sprintf("%d of %d watches are in sync, %d requests refused", c.stats.InSync.Load(), total,
			c.stats.Refused.Load())
	})()
	err := await(ctx, c.options.syncTimeout, func() bool { return c.stats.InSync.Load() == total })
	if ctx.Err() != nil {
		return err
	}
	return nil // addSync reports the watches that are not in sync
}

// addSync adds to the result which watches are not in sync.
func (c *cluster) addSync(phase string, total int64) {
	absent := total - c.stats.InSync.Load()
	c.result.add(phase, "watches", float64(total), "")
	c.result.add(phase, "watches not in sync", float64(absent), "")
	c.result.add(phase, "watch requests refused", float64(c.stats.Refused.Swap(0)), "")
	c.result.none(phase+": watches not in sync", absent)
}

// addLost adds the number of lost watches to the result.
func (c *cluster) addLost(phase string) {
	lost := c.stats.Lost.Swap(0)
	c.result.add(phase, "watches lost", float64(lost), "")
	c.result.none(phase+": watches lost", lost)
}

// addConnections adds the memory and the goroutines for each node to the result, compared with the server before the
// nodes were connected.
func (c *cluster) addConnections(ctx context.Context, resident int64, goroutines float64) error {
	connected, _, err := c.memory()
	if err != nil {
		return err
	}
	nodes := float64(c.options.nodes)
	c.result.add("connect", "resident for each node", float64(connected-resident)/nodes, bytesUnit)
	if after := c.goroutines(ctx); goroutines > 0 && after > 0 {
		c.result.add("connect", "goroutines", after, "")
		c.result.add("connect", "goroutines for each node", (after-goroutines)/nodes, "")
	}
	return nil
}

// work makes the nodes renew leases and write states until the context ends.
func (c *cluster) work(ctx context.Context) {
	intervals := hollow.Intervals{Lease: c.options.lease, Status: c.options.status}
	for _, node := range c.nodes {
		c.running.Go(func() { node.Work(ctx, intervals) })
	}
}

// hold keeps the cluster for the duration of the options while objects change. The nodes work until the context ends.
func (c *cluster) hold(ctx context.Context) error {
	c.work(ctx)
	var missing int64
	spent, err := c.measured(ctx, "hold", func(ctx context.Context) (err error) {
		missing, err = c.churn.during(ctx, func(ctx context.Context) error {
			defer c.report(ctx, func() string {
				return fmt.Sprintf("%d events delivered, %d watches lost", c.stats.Delivered.Load(), c.stats.Lost.Load())
			})()
			return measure.Pause(ctx, c.options.duration)
		})
		return err
	})
	if err != nil {
		return err
	}
	c.result.add("hold", "cores", spent.cpu.Seconds()/spent.wall.Seconds(), "")
	c.addEvents("hold", missing)
	timings := c.stats.Timings()
	c.result.limit("hold: p99 of event delay", timings.Events.Quantile(0.99))
	c.result.limit("hold: p99 of writes", timings.Writes.Quantile(0.99))
	c.result.limit("hold: p99 of GETs", timings.Reads.Quantile(0.99))
	return nil
}

// addEvents adds the events, lost watches, failed requests and latencies of a phase to the result.
func (c *cluster) addEvents(phase string, missing int64) {
	c.addCounts(phase, missing)
	c.addTimings(phase)
}

// addTimings adds the durations since the beginning of the phase to the result.
func (c *cluster) addTimings(phase string) {
	timings := c.stats.Timings()
	c.result.addTimes(phase, "event delay", &timings.Events)
	c.result.addTimes(phase, "write", &timings.Writes)
	c.result.addTimes(phase, "GET", &timings.Reads)
}

// gaps returns the number of watches whose events are not compared with the changes.
func (c *cluster) gaps() (count int) {
	for _, w := range c.watches() {
		if w.HasGap() {
			count++
		}
	}
	return count
}

// addCounts adds the numbers of events, lost watches and failed requests to the result.
func (c *cluster) addCounts(phase string, missing int64) {
	c.result.add(phase, "events delivered", float64(c.stats.Delivered.Swap(0)), "")
	c.result.add(phase, "events missing", float64(missing), "")
	c.addLost(phase)
	c.result.add(phase, "watches that began again", float64(c.stats.Relisted.Swap(0)), "")
	c.result.add(phase, "watches whose events are not compared", float64(c.gaps()), "")
	c.result.add(phase, "requests failed", float64(c.stats.Failed.Load()), "")
	c.result.add(phase, "changes left out", float64(c.churn.skipped.Swap(0)), "")
	c.result.none(phase+": events missing", missing)
	c.result.none(phase+": requests failed", c.stats.Failed.Swap(0))
}

// concurrently calls do for each of count indexes at the same time.
func concurrently(count int, do func(i int)) {
	var group sync.WaitGroup
	for i := range count {
		group.Go(func() { do(i) })
	}
	group.Wait()
}
