package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// measureWatch does the same updates without watchers and with them. What they cost more with them, divided by
// events times watchers, is the price of one event to one watcher. It may come out negative: then it is too small to be
// told from the noise of the two.
func (s *subject) measureWatch(ctx context.Context, w work) (Measurement, error) {
	alone, err := s.timed(func() error {
		_, err := s.repeat(ctx, w, 0)
		return err
	})
	if err != nil {
		return Measurement{}, err
	}
	watchers, err := s.openWatchers(ctx, w)
	if err != nil {
		return Measurement{}, err
	}
	profile := s.startProfile(ctx, profileOfWork, w.name)
	watched, err := s.timed(func() error {
		reading := watchers.start(w.count)
		again := w
		again.request = from(w.count, w.request)
		_, err := s.repeat(ctx, again, 0)
		return errors.Join(err, reading())
	})
	deliveries := w.count * w.watchers
	return Measurement{
		Requests: deliveries, Bytes: watchers.size() / int64(deliveries), CPU: (watched - alone) / time.Duration(deliveries),
	}, errors.Join(err, profile())
}

// timed returns the CPU time that the server used meanwhile.
func (s *subject) timed(do func() error) (time.Duration, error) {
	before, err := cpu(s.pids)
	if err != nil {
		return 0, err
	}
	if err := do(); err != nil {
		return 0, err
	}
	after, err := cpu(s.pids)
	return after - before, err
}

// watcher is one watch.
type watcher struct {
	client *client
	body   io.ReadCloser
	size   int64
}

type watchers []*watcher

// openWatchers returns when the server has accepted all of them.
func (s *subject) openWatchers(ctx context.Context, w work) (watchers, error) {
	var list meta.PartialObjectMetadataList
	if err := s.client.get(ctx, configMaps+"?limit=1", &list); err != nil {
		return nil, err
	}
	path := configMaps + "?watch=1&timeoutSeconds=600&resourceVersion=" + list.ResourceVersion
	var all watchers
	for i := range w.watchers {
		c, err := s.watcherClient(all, w.share)
		if err != nil {
			return nil, fmt.Errorf("watcher %d: %w", i, err)
		}
		response, err := c.send(ctx, request{method: http.MethodGet, path: path, accept: asJSON})
		if err != nil {
			return nil, err
		}
		all = append(all, &watcher{client: c, body: response.Body})
	}
	return all, nil
}

// watcherClient is that of the last watcher while others may share its connection, otherwise a new one.
func (s *subject) watcherClient(all watchers, share int) (*client, error) {
	if share > 0 && len(all)%share != 0 {
		return all[len(all)-1].client, nil
	}
	return newClient(s.admin)
}

// start lets all watchers read. The returned function waits until each has seen that many events.
func (all watchers) start(events int) (wait func() error) {
	errs := make([]error, len(all))
	var group sync.WaitGroup
	for i, w := range all {
		group.Go(func() { errs[i] = w.read(events) })
	}
	return func() error {
		group.Wait()
		return errors.Join(errs...)
	}
}

// read counts events by their line ends.
func (w *watcher) read(events int) error {
	defer w.client.close()
	defer w.body.Close()
	buffer := make([]byte, 64<<10)
	for seen := 0; seen < events; {
		n, err := w.body.Read(buffer)
		w.size += int64(n)
		seen += bytes.Count(buffer[:n], []byte("\n"))
		if err != nil && seen < events {
			return fmt.Errorf("watch ended after %d of %d events: %w", seen, events, err)
		}
	}
	return nil
}

func (all watchers) size() (total int64) {
	for _, w := range all {
		total += w.size
	}
	return total
}
