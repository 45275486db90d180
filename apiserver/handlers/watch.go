package handlers

import (
	"context"
	"math/rand/v2"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"quorate.dev/apiserver/encoding"
	"quorate.dev/apiserver/registry"
)

// watch serves GET of a stream of events. The stream ends when its timeout expires, the client disconnects, or the
// server stops.
func (c *call) watch(ctx context.Context) error {
	options, selection, err := c.listOptions()
	if err != nil {
		return err
	}
	initial := options.SendInitialEvents != nil && *options.SendInitialEvents
	legacy := options.SendInitialEvents == nil && (options.ResourceVersion == "" || options.ResourceVersion == "0")
	ctx, cancel := context.WithTimeout(ctx, c.watchDuration(options.TimeoutSeconds))
	defer cancel()
	target := c.target
	changes, err := c.Registry.Watch(ctx, target, registry.WatchOptions{
		Selection:       selection,
		ResourceVersion: options.ResourceVersion,
		InitialEvents:   initial || legacy,
	})
	lost := apierrors.IsResourceExpired(err) || apierrors.IsTimeout(err)
	if err != nil && !lost {
		return err
	}
	if err == nil {
		defer changes.Close()
	}
	table, notStreamable := c.streamTable()
	if notStreamable != nil {
		return notStreamable
	}
	if lost {
		return c.sendWatchError(err, initial && options.AllowWatchBookmarks)
	}
	s := &stream{
		call: c, format: c.format(), table: table, changes: changes, seen: changes.Start,
		bookmarks: options.AllowWatchBookmarks, compressed: initial && options.AllowWatchBookmarks,
	}
	if c.Metrics != nil {
		s.counts = c.Metrics.events.of(target.Match)
	}
	s.open(ctx, func(ctx context.Context) {
		sent := s.sendInitial(initial && options.AllowWatchBookmarks, selection)
		// kube-apiserver also releases the seat when the initial events have been sent.
		c.record.ReleaseSeat()
		if sent {
			s.run(ctx)
		}
	})
	return nil
}

// streamTable returns the table format of a watch, or nil if the client did not ask for tables. It returns an error for
// media types that have no streams.
func (c *call) streamTable() (*encoding.Table, error) {
	if c.output.as != table {
		return nil, c.output.streamable()
	}
	t, err := c.tableFormat()
	if err != nil {
		return nil, err
	}
	return &t, c.output.streamable()
}

// watchDuration returns the timeout that the client asks for or, by default, a random one between MinWatchTimeout and
// twice MinWatchTimeout, so that clients that connect together do not reconnect together.
func (c *call) watchDuration(timeout *int64) time.Duration {
	if timeout != nil && *timeout > 0 {
		return time.Duration(*timeout) * time.Second
	}
	return time.Duration(float64(c.MinWatchTimeout) * (1 + rand.Float64()))
}

// sendWatchError sends an error as the only event of a watch. Clients handle expired and too large resource versions in
// events, not in the status of the response.
func (c *call) sendWatchError(err error, compressed bool) error {
	s := &stream{call: c, format: c.format(), compressed: compressed}
	s.open(c.r.Context(), func(context.Context) { s.fail(err) })
	return nil
}
