package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"quorate.dev/test/measure"
	"quorate.dev/test/scale/wire"
)

// Times of storms.
const (
	listTimeout = time.Minute     // as long as servers try
	calm        = 3 * time.Second // before and after a storm
	slowHold    = 20 * time.Second
	slowBuffer  = 16 << 10 // bytes that the kernel keeps for a client that does not read
)

// storm is a disturbance of all clients or of the server.
type storm struct {
	name string
	run  func(*cluster, context.Context) error
}

// allStorms returns the storms in the order in which they run.
func allStorms() []storm {
	return []storm{
		{"reconnect", (*cluster).reconnect}, {"list", (*cluster).listAll}, {"slow", (*cluster).readSlowly},
		{"restart", (*cluster).restart},
	}
}

// storms runs the storms that the options select.
func (c *cluster) storms(ctx context.Context) error {
	for _, s := range allStorms() {
		if slices.Contains(c.options.storms, s.name) {
			if err := c.storm(ctx, s); err != nil {
				return err
			}
		}
	}
	return nil
}

// storm runs a storm while objects change, also shortly before and after it.
func (c *cluster) storm(ctx context.Context, s storm) error {
	name := "storm " + s.name
	missing, err := c.churn.during(ctx, func(ctx context.Context) error {
		if err := measure.Pause(ctx, calm); err != nil {
			return err
		}
		_, err := c.measured(ctx, name, func(ctx context.Context) error { return s.run(c, ctx) })
		return errors.Join(err, measure.Pause(ctx, calm))
	})
	if err != nil {
		return err
	}
	c.addEvents(name, missing)
	return nil
}

// disturb runs what interrupts the watches, and adds the time until all are in sync again to the result.
func (c *cluster) disturb(ctx context.Context, name string, interrupt func(context.Context) error) error {
	total := int64(len(c.watches()))
	c.stats.Disturbed.Store(true)
	defer c.stats.Disturbed.Store(false)
	if err := interrupt(ctx); err != nil {
		return err
	}
	begin := time.Now()
	if err := c.awaitSync(ctx, total); err != nil {
		return err
	}
	c.result.add(name, "time until all watches are in sync", time.Since(begin).Seconds(), seconds)
	c.addSync(name, total)
	return nil
}

// reconnect drops the connections of all nodes and observers at the same time. The clients connect again immediately,
// and resume their watches.
func (c *cluster) reconnect(ctx context.Context) error {
	return c.disturb(ctx, "storm reconnect", func(context.Context) error {
		clients := c.clients()
		before := c.stats.InSync.Load()
		concurrently(len(clients), func(i int) { clients[i].Reconnect() })
		return await(ctx, listTimeout, func() bool { return c.stats.InSync.Load() < before })
	})
}

// listAll makes every node list the pods of the whole cluster, all nodes at the same time.
func (c *cluster) listAll(ctx context.Context) error {
	var complete, rejected, failed, bytes atomic.Int64
	r := wire.Request{Method: http.MethodGet, Path: podsPath + "?resourceVersion=0", Accept: wire.Protobuf}
	begin := time.Now()
	stop := c.report(ctx, func() string {
		return fmt.Sprintf("%d of %d lists are complete, %d rejected", complete.Load(), len(c.nodes), rejected.Load())
	})
	defer stop()
	concurrently(len(c.nodes), func(i int) {
		response, err := c.nodes[i].List(ctx, r, listTimeout)
		bytes.Add(response.Size)
		switch {
		case err != nil:
			failed.Add(1)
			c.stats.Report(err)
		case response.Status == http.StatusOK:
			complete.Add(1)
		default:
			rejected.Add(1)
		}
	})
	const name = "storm list"
	c.result.add(name, "time until all lists have ended", time.Since(begin).Seconds(), seconds)
	c.result.add(name, "lists complete", float64(complete.Load()), "")
	c.result.add(name, "lists rejected", float64(rejected.Load()), "")
	c.result.add(name, "lists not complete after a minute", float64(failed.Load()), "")
	c.result.add(name, "bytes of lists", float64(bytes.Load()), bytesUnit)
	return ctx.Err()
}

// readSlowly opens connections, each with a watch of all pods whose response is not read.
func (c *cluster) readSlowly(ctx context.Context) error {
	before, _, err := c.memory()
	if err != nil {
		return err
	}
	configuration, err := c.target.User(slowUser)
	if err != nil {
		return err
	}
	r := wire.Request{
		Method: http.MethodGet, Accept: wire.ProtobufStream,
		Path: podsPath + "?watch=true&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan",
	}
	connections := make([]*wire.Connection, c.options.slow)
	errs := make([]error, len(connections))
	concurrently(len(connections), func(i int) {
		if connections[i], errs[i] = c.target.Dial(ctx, configuration); errs[i] == nil {
			errs[i] = connections[i].StartUnread(r, slowBuffer)
		}
	})
	defer concurrently(len(connections), func(i int) {
		if connections[i] != nil {
			connections[i].Close()
		}
	})
	for i, err := range errs {
		if err != nil {
			return fmt.Errorf("open slow watch %d: %w", i, err)
		}
	}
	if err := measure.Pause(ctx, slowHold); err != nil {
		return err
	}
	return c.addSlow(before)
}

// addSlow adds the memory for each slow watch to the result.
func (c *cluster) addSlow(before int64) error {
	after, _, err := c.memory()
	c.result.add("storm slow", "slow watches", float64(c.options.slow), "")
	c.result.add("storm slow", "resident for each slow watch", float64(after-before)/float64(c.options.slow), bytesUnit)
	return err
}

// restart kills the API server and starts it again.
func (c *cluster) restart(ctx context.Context) error {
	return c.disturb(ctx, "storm restart", func(ctx context.Context) error {
		begin := time.Now()
		c.server.API.Kill()
		if err := c.server.Relaunch(ctx); err != nil {
			return fmt.Errorf("start the API server again: %w", err)
		}
		c.result.add("storm restart", "time until ready", time.Since(begin).Seconds(), seconds)
		return c.target.Update()
	})
}
