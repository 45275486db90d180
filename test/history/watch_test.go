package history

import (
	"context"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// event is a change of one object as a watch delivered it.
type event struct {
	Type     watch.EventType
	Key      string
	Value    string
	Revision int64
}

// chain has the observations of one watcher without a gap: a state and the events after it. The watch may have been
// interrupted and resumed in between.
type chain struct {
	Watcher  int
	From     int64             // revision of the state
	Values   map[string]string // by key, at From
	Events   []event           // bookmarks among them
	Reached  int64             // revision up to which it received everything
	Resumed  int
	Expired  bool // the server no longer had the next events
	reported atomic.Int64
}

// watchers watch all objects.
type watchers struct {
	group
	mu  sync.Mutex
	all [][]*chain // by watcher
}

func (r *replicas) watch(ctx context.Context, h *record, p plan, seed uint64) *watchers {
	ws := &watchers{all: make([][]*chain, p.watchers)}
	for i := range p.watchers {
		w := &watcher{replicas: r, all: ws, id: i, longest: p.compaction, random: choices(seed, uint64(firstWatcher+i))}
		ws.Go(func() { w.run(ctx) })
	}
	return ws
}

func (ws *watchers) begin(c *chain) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.all[c.Watcher] = append(ws.all[c.Watcher], c)
}

func (ws *watchers) chains() (all []*chain) {
	for _, chains := range ws.all {
		all = append(all, chains...)
	}
	return all
}

// mustReach waits until every watcher has reached a revision.
func (ws *watchers) mustReach(t *testing.T, revision int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for i := range ws.all {
		for ws.reached(i) < revision {
			if !pause(ctx, 20*time.Millisecond) {
				t.Fatalf("watcher %d has come to revision %d, and not to %d", i, ws.reached(i), revision)
			}
		}
	}
}

func (ws *watchers) reached(watcher int) int64 {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	chains := ws.all[watcher]
	if len(chains) == 0 {
		return 0
	}
	return chains[len(chains)-1].reported.Load()
}

// watcher keeps one watch, interrupts it at random, and resumes it through any replica.
type watcher struct {
	*replicas
	all     *watchers
	id      int
	longest time.Duration // of a watch, and of the time between two
	random  *rand.Rand
}

func (w *watcher) run(ctx context.Context) {
	for ctx.Err() == nil {
		c, ok := w.begin(ctx)
		if !ok {
			pause(ctx, 20*time.Millisecond)
			continue
		}
		w.all.begin(c)
		for w.follow(ctx, c); ctx.Err() == nil && !c.Expired; w.follow(ctx, c) {
			c.Resumed++
			wait := 20 * time.Millisecond
			if w.random.IntN(8) == 0 {
				wait = time.Duration(w.random.Int64N(int64(w.longest)))
			}
			pause(ctx, wait)
		}
	}
}

func (w *watcher) open(ctx context.Context, options meta.ListOptions) (watch.Interface, error) {
	options.LabelSelector, options.Watch, options.AllowWatchBookmarks = "history=true", true, true
	return w.request().VersionedParams(&options, scheme.ParameterCodec).Watch(ctx)
}

// request returns a request for all objects: in their namespace for half of the watchers, in all namespaces for the others.
func (w *watcher) request() *rest.Request {
	request := w.clients[w.random.IntN(count)].Get().Resource("configmaps")
	if w.id%2 == 0 {
		request = request.Namespace(namespace)
	}
	return request
}

// begin reads the initial state by a list, or by a watch with initial events.
func (w *watcher) begin(ctx context.Context) (*chain, bool) {
	c := &chain{Watcher: w.id, Values: map[string]string{}}
	if w.random.IntN(2) == 0 {
		return c, w.beginWithWatch(ctx, c)
	}
	objects := &core.ConfigMapList{}
	err := w.request().VersionedParams(&meta.ListOptions{LabelSelector: "history=true"},
		scheme.ParameterCodec).Do(ctx).Into(objects)
	if err != nil {
		return nil, false
	}
	c.From, err = strconv.ParseInt(objects.ResourceVersion, 10, 64)
	for _, object := range objects.Items {
		c.Values[object.Name] = object.Data["value"]
	}
	c.reach(c.From)
	return c, err == nil
}

func (w *watcher) beginWithWatch(ctx context.Context, c *chain) bool {
	ctx, cancel := context.WithTimeout(ctx, w.longest)
	defer cancel()
	yes := true
	stream, err := w.open(ctx,
		meta.ListOptions{SendInitialEvents: &yes, ResourceVersionMatch: meta.ResourceVersionMatchNotOlderThan})
	if err != nil {
		return false
	}
	defer stream.Stop()
	for e := range stream.ResultChan() {
		object, ok := e.Object.(*core.ConfigMap)
		switch {
		case !ok:
			return false
		case e.Type == watch.Bookmark && object.Annotations[meta.InitialEventsAnnotationKey] == "true":
			c.From = revisionOf(object)
			c.reach(c.From)
			return true
		case e.Type == watch.Added:
			c.Values[object.Name] = object.Data["value"]
		}
	}
	return false
}

// follow watches for a random time from the end of the chain.
func (w *watcher) follow(ctx context.Context, c *chain) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(1+w.random.Int64N(int64(w.longest))))
	defer cancel()
	stream, err := w.open(ctx, meta.ListOptions{ResourceVersion: strconv.FormatInt(c.Reached, 10)})
	if err != nil {
		c.Expired = isExpired(err)
		return
	}
	defer stream.Stop()
	for e := range stream.ResultChan() {
		if e.Type == watch.Error {
			c.Expired = isExpired(apierrors.FromObject(e.Object))
			return
		}
		object := e.Object.(*core.ConfigMap)
		c.Events = append(c.Events, event{Type: e.Type, Key: object.Name, Value: object.Data["value"],
			Revision: revisionOf(object)})
		c.reach(revisionOf(object))
	}
}

func (c *chain) reach(revision int64) {
	c.Reached = revision
	c.reported.Store(revision)
}

func isExpired(err error) bool { return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) }
