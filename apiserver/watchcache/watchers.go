package watchcache

// watchers has all watchers of a cache, grouped by scope, so that the cost of an event does not depend on the number
// of watchers of other scopes. Guarded by Cache.mu.
type watchers struct {
	all    map[*Watcher]struct{}           // watchers of the whole collection
	scoped map[Scope]map[*Watcher]struct{} // watchers of narrower scopes. Invariant: no set is empty
	shapes map[shape]int                   // number of watchers in scoped by shape. Invariant: all numbers are positive
}

func newWatchers() watchers {
	return watchers{
		all:    map[*Watcher]struct{}{},
		scoped: map[Scope]map[*Watcher]struct{}{},
		shapes: map[shape]int{},
	}
}

func (ws *watchers) count() int {
	count := len(ws.all)
	for _, watchers := range ws.shapes {
		count += watchers
	}
	return count
}

// add adds a watcher, which receives all events that are dispatched afterwards.
func (ws *watchers) add(w *Watcher) {
	if w.wholeCollection() {
		ws.all[w] = struct{}{}
		return
	}
	if ws.scoped[w.scope] == nil {
		ws.scoped[w.scope] = map[*Watcher]struct{}{}
	}
	ws.scoped[w.scope][w] = struct{}{}
	ws.shapes[w.scope.shape()]++
}

// remove removes a watcher. It removes the sets and shapes that become empty, because dispatch visits all shapes.
func (ws *watchers) remove(w *Watcher) {
	if w.closed {
		return
	}
	w.closed = true
	if w.wholeCollection() {
		delete(ws.all, w)
		return
	}
	delete(ws.scoped[w.scope], w)
	if len(ws.scoped[w.scope]) == 0 {
		delete(ws.scoped, w.scope)
	}
	s := w.scope.shape()
	if ws.shapes[s]--; ws.shapes[s] == 0 {
		delete(ws.shapes, s)
	}
}

// dispatch signals the watchers whose scope the object of a new event matches before or after the event. It never
// blocks. Watchers of the whole collection find the event in the ring; to the others it adds the sequence number.
func (ws *watchers) dispatch(c *Cache, r *record, sequence uint64) {
	for w := range ws.all {
		w.signal()
	}
	for s := range ws.shapes {
		scope, ok := s.scope(r.entry)
		if ok {
			ws.enqueue(c, scope, r, sequence)
		}
		if s.field == "" || r.previous == nil {
			continue
		}
		if before, ok := s.scope(r.previous); ok && before != scope {
			ws.enqueue(c, before, r, sequence)
		}
	}
}

// enqueue adds an event to pending of the watchers of a scope. It expires watchers that lag behind the ring.
func (ws *watchers) enqueue(c *Cache, scope Scope, r *record, sequence uint64) {
	for w := range ws.scoped[scope] {
		if w.expired || w.waiting || r.entry.revision <= w.after {
			continue
		}
		if w.behind() {
			w.expire()
			c.stats.terminated.Add(1)
			continue
		}
		w.pending = append(w.pending, sequence)
		w.signal()
	}
}

// each visits all watchers.
func (ws *watchers) each(visit func(*Watcher)) {
	for w := range ws.all {
		visit(w)
	}
	for _, watchers := range ws.scoped {
		for w := range watchers {
			visit(w)
		}
	}
}

// settle positions the watchers that were added before the cache was ready. A watcher that starts before the ring
// keeps waiting and is woken, so that its Next fetches history from the store.
func (ws *watchers) settle(c *Cache) {
	ws.each(func(w *Watcher) {
		if !w.waiting {
			return
		}
		if w.after >= c.ring.floor {
			w.waiting = false
			w.position()
		}
		w.signal()
	})
}

// expireAhead expires watchers that start after a revision up to which the cache has received all events. Later
// events are lost, and reconcile dispatches differences, from which it does not follow which of the lost events such
// a client has seen.
func (ws *watchers) expireAhead(seen int64) {
	ws.each(func(w *Watcher) {
		if w.after > seen && !w.waiting {
			w.expire()
		}
	})
}

// expireAll expires all watchers, because the contents of the cache are dropped.
func (ws *watchers) expireAll() {
	ws.each(func(w *Watcher) { w.expire() })
}
