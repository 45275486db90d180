package check

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// event is a change of one object, as a watch has delivered it.
type event struct {
	Type     watch.EventType
	Key      string
	Value    string
	Revision int64
}

// chain holds the observations of one watcher without a gap: a state and the events after it. The watch may have been
// interrupted and resumed at its last revision.
type chain struct {
	Watcher  int
	From     int64             // revision of the initial state
	Values   map[string]string // values of the initial state, by key
	Events   []event           // events after From, including bookmarks
	Reached  int64             // revision up to which the watcher has received all changes
	Resumed  int
	Expired  bool // a watch ended with "410 Gone": the next events were compacted
	reported atomic.Int64
}

// Watchers watch all objects of a Site.
type Watchers struct {
	sync.WaitGroup
	record *Record
	mu     sync.Mutex
	all    [][]*chain // chains of each watcher, oldest first
}

// Watch starts watchers, which end when ctx ends.
func (s *Site) Watch(ctx context.Context, load Load, seed uint64) *Watchers {
	ws := &Watchers{record: s.Record, all: make([][]*chain, load.Watchers)}
	for i := range load.Watchers {
		w := &watcher{Site: s, all: ws, id: i, longest: load.LongestWatch, random: choices(seed, uint64(firstWatcher+i))}
		ws.Go(func() { w.run(ctx) })
	}
	return ws
}

func (ws *Watchers) begin(c *chain) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.all[c.Watcher] = append(ws.all[c.Watcher], c)
}

// Finish waits for the end of the watchers, whose context must have ended, and adds their observations to the record.
func (ws *Watchers) Finish() {
	ws.Wait()
	for _, chains := range ws.all {
		ws.record.chains = append(ws.record.chains, chains...)
	}
}

// Reach waits until every watcher has reached a revision.
func (ws *Watchers) Reach(ctx context.Context, revision int64) error {
	for i := range ws.all {
		for ws.reached(i) < revision {
			if !Pause(ctx, 20*time.Millisecond) {
				return fmt.Errorf("watcher %d has come to revision %d, and not to %d", i, ws.reached(i), revision)
			}
		}
	}
	return nil
}

func (ws *Watchers) reached(watcher int) int64 {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	chains := ws.all[watcher]
	if len(chains) == 0 {
		return 0
	}
	return chains[len(chains)-1].reported.Load()
}

// watcher keeps one watch open, interrupts it at random, and resumes it through any server.
type watcher struct {
	*Site
	all     *Watchers
	id      int
	longest time.Duration // maximum duration of a watch, and of the time between two watches
	random  *rand.Rand
}

func (w *watcher) run(ctx context.Context) {
	for ctx.Err() == nil {
		c, ok := w.begin(ctx)
		if !ok {
			Pause(ctx, 20*time.Millisecond)
			continue
		}
		w.all.begin(c)
		for w.follow(ctx, c); ctx.Err() == nil && !c.Expired; w.follow(ctx, c) {
			c.Resumed++
			wait := 20 * time.Millisecond
			if w.random.IntN(8) == 0 {
				wait = time.Duration(w.random.Int64N(int64(w.longest)))
			}
			Pause(ctx, wait)
		}
	}
}

// frame is an encoded event of a watch. The object of an event of type ERROR is a Status.
type frame struct {
	Type   watch.EventType `json:"type"`
	Object json.RawMessage `json:"object"`
}

// open sends a watch request and calls each for every event, until each returns false. It returns an error if the
// request fails or the server sends an event of type ERROR.
func (w *watcher) open(ctx context.Context, options meta.ListOptions, each func(watch.EventType, *Object) bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	options.LabelSelector, options.Watch, options.AllowWatchBookmarks = selector, true, true
	stream, err := w.request().VersionedParams(&options, scheme.ParameterCodec).Stream(ctx)
	if err != nil {
		return err
	}
	defer stream.Close()
	decoder := json.NewDecoder(stream)
	for {
		var f frame
		if err := decoder.Decode(&f); err != nil {
			return nil // the end of the watch
		}
		if f.Type == watch.Error {
			status := &meta.Status{}
			return errors.Join(json.Unmarshal(f.Object, status), apierrors.FromObject(status))
		}
		object := &Object{}
		if err := json.Unmarshal(f.Object, object); err != nil {
			return err
		}
		if !each(f.Type, object) {
			return nil
		}
	}
}

// request returns a request for all objects. Half of the watchers request the collection of the namespace, the others
// the collection of all namespaces.
func (w *watcher) request() *rest.Request {
	path := w.Objects.everywhere()
	if w.id%2 == 0 {
		path = w.Objects.path()
	}
	return w.Clients[w.random.IntN(len(w.Clients))].Get().AbsPath(path).MaxRetries(0)
}

// begin reads the initial state, by a list or by a watch with sendInitialEvents.
func (w *watcher) begin(ctx context.Context) (*chain, bool) {
	ctx, cancel := context.WithTimeout(ctx, max(w.longest, requestTimeout))
	defer cancel()
	c := &chain{Watcher: w.id, Values: map[string]string{}}
	if w.random.IntN(2) == 0 {
		return c, w.beginWithWatch(ctx, c)
	}
	objects := &objectList{}
	options := &meta.ListOptions{LabelSelector: selector}
	err := decode(w.request().VersionedParams(options, scheme.ParameterCodec).Do(ctx), objects)
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

func (w *watcher) beginWithWatch(ctx context.Context, c *chain) (complete bool) {
	yes := true
	options := meta.ListOptions{SendInitialEvents: &yes, ResourceVersionMatch: meta.ResourceVersionMatchNotOlderThan}
	_ = w.open(ctx, options, func(kind watch.EventType, object *Object) bool {
		if kind == watch.Bookmark && object.Annotations[meta.InitialEventsAnnotationKey] == "true" {
			c.From = revisionOf(object)
			c.reach(c.From)
			complete = true
			return false
		}
		if kind == watch.Added {
			c.Values[object.Name] = object.Data["value"]
		}
		return true
	})
	return complete
}

// follow watches for a random time, starting at the end of the chain.
func (w *watcher) follow(ctx context.Context, c *chain) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(1+w.random.Int64N(int64(w.longest))))
	defer cancel()
	options := meta.ListOptions{ResourceVersion: strconv.FormatInt(c.Reached, 10)}
	err := w.open(ctx, options, func(kind watch.EventType, object *Object) bool {
		if w.Drop == nil || kind == watch.Bookmark || !w.Drop() {
			c.Events = append(c.Events, event{Type: kind, Key: object.Name, Value: object.Data["value"],
				Revision: revisionOf(object)})
		}
		c.reach(revisionOf(object))
		return true
	})
	c.Expired = isExpired(err)
}

func (c *chain) reach(revision int64) {
	c.Reached = revision
	c.reported.Store(revision)
}

func isExpired(err error) bool { return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) }
