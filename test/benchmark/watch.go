package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/test/measure"
)

// measureWatch executes the same updates without watchers and with them. The difference of the costs, divided by the
// number of events and by the number of watchers, is the cost of one event for one watcher. It is negative if it is
// smaller than the noise of the two measurements. A latency is the time from sending an update until a watcher has read
// its event. Each round executes its share of the updates in both ways, with new watchers.
func (s *subject) measureWatch(ctx context.Context, r round, c *course) error {
	w := r.part()
	alone, err := s.timed(func() error {
		_, err := s.repeat(ctx, w, least{})
		return err
	})
	if err != nil {
		return err
	}
	watchers, err := s.openWatchers(ctx, w)
	if err != nil {
		return err
	}
	profile := s.profileRound(ctx, r)
	again, sent := round{r.work.repeated(), r.index, r.of}.part().noted()
	watched, err := s.timed(func() error {
		reading := watchers.start(w.count)
		_, err := s.repeat(ctx, again, least{})
		return errors.Join(err, reading())
	})
	if err := errors.Join(err, profile()); err != nil {
		return err
	}
	c.add(&tally{latencies: watchers.latencies(sent), bytes: watchers.size()}, watched-alone)
	return nil
}

// repeated returns the same work with the next indexes.
func (w work) repeated() work {
	w.request = from(w.count, w.request)
	return w
}

// noted returns the same work, and a map to which it adds the time at which each update was sent, by revision. The map
// must be read only after the work.
func (w work) noted() (work, map[int]time.Time) {
	var mu sync.Mutex
	sent := make(map[int]time.Time, w.count)
	original := w.request
	w.request = func(i int) request {
		r := original(i)
		mu.Lock()
		defer mu.Unlock()
		sent[revisionOf(r.body)] = time.Now()
		return r
	}
	return w, sent
}

// timed calls do and returns the CPU time that the server has used during the call.
func (s *subject) timed(do func() error) (time.Duration, error) {
	before, err := measure.CPU(s.PIDs)
	if err != nil {
		return 0, err
	}
	if err := do(); err != nil {
		return 0, err
	}
	after, err := measure.CPU(s.PIDs)
	return after - before, err
}

// watcher is one watch request.
type watcher struct {
	client *client
	body   io.ReadCloser
	size   int64
	seen   []event
}

// event is the time at which a watcher has read the event of an update.
type event struct {
	revision int
	at       time.Time
}

type watchers []*watcher

// openWatchers opens the watchers of a work, and returns when the server has accepted all of them.
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

// watcherClient returns the client of the last watcher if share permits another watcher on its connection, otherwise a
// new client.
func (s *subject) watcherClient(all watchers, share int) (*client, error) {
	if share > 0 && len(all)%share != 0 {
		return all[len(all)-1].client, nil
	}
	return newClient(s.Admin)
}

// start makes all watchers read. The returned function waits until each has read the given number of events.
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

// read reads the given number of events. Each ends with a newline.
func (w *watcher) read(events int) error {
	defer w.client.close()
	defer w.body.Close()
	lines := bufio.NewReaderSize(w.body, 64<<10)
	w.seen = make([]event, 0, events)
	for len(w.seen) < events {
		line, err := lines.ReadSlice('\n')
		if err != nil {
			return fmt.Errorf("watch ended after %d of %d events: %w", len(w.seen), events, err)
		}
		w.size += int64(len(line))
		w.seen = append(w.seen, event{revisionOf(line), time.Now()})
	}
	return nil
}

// revisionOf returns the state of a configmap (see configMap) that an encoded update or event contains.
func revisionOf(encoded []byte) int {
	_, after, _ := bytes.Cut(encoded, []byte(`"revision":"`))
	digits, _, _ := bytes.Cut(after, []byte(`"`))
	revision, _ := strconv.Atoi(string(digits))
	return revision
}

// latencies returns the latencies of all events for all watchers.
func (all watchers) latencies(sent map[int]time.Time) []time.Duration {
	var latencies []time.Duration
	for _, w := range all {
		for _, e := range w.seen {
			latencies = append(latencies, e.at.Sub(sent[e.revision]))
		}
	}
	return latencies
}

func (all watchers) size() (total int64) {
	for _, w := range all {
		total += w.size
	}
	return total
}
