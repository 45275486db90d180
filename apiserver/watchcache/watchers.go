package watchcache

// watchers are all watchers of a cache, arranged so that an event finds those it concerns without looking at
// the others. Guarded by the cache's lock.
type watchers struct {
	all    map[*Watcher]struct{}           // of everything
	scoped map[Scope]map[*Watcher]struct{} // of anything narrower
	shapes map[shape]int                   // number of watchers by the shape of their scope
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

func (ws *watchers) add(w *Watcher) {
	if w.everything() {
		ws.all[w] = struct{}{}
		return
	}
	if ws.scoped[w.scope] == nil {
		ws.scoped[w.scope] = map[*Watcher]struct{}{}
	}
	ws.scoped[w.scope][w] = struct{}{}
	ws.shapes[w.scope.shape()]++
}

func (ws *watchers) remove(w *Watcher) {
	if w.closed {
		return
	}
	w.closed = true
	if w.everything() {
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

// notify wakes the watchers whom a new event concerns.
func (ws *watchers) notify(c *Cache, r *record, sequence uint64) {
	for w := range ws.all {
		w.signal()
	}
	for s := range ws.shapes {
		scope, ok := s.scope(r.entry)
		if ok {
			ws.deliver(c, scope, r, sequence)
		}
		if s.field == "" || r.previous == nil {
			continue
		}
		if before, ok := s.scope(r.previous); ok && before != scope {
			ws.deliver(c, before, r, sequence)
		}
	}
}

func (ws *watchers) deliver(c *Cache, scope Scope, r *record, sequence uint64) {
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

// settle places the watchers that came before the cache was ready.
func (ws *watchers) settle(c *Cache) {
	ws.each(func(w *Watcher) {
		if !w.waiting {
			return
		}
		if w.after >= c.ring.floor {
			w.waiting = false
			w.place()
		}
		w.signal() // without a place, it looks for one in the store
	})
}

// expireAhead ends watchers whose clients know more than the cache: what they miss cannot be found out from the
// difference between the cache's state and a later one.
func (ws *watchers) expireAhead(seen int64) {
	ws.each(func(w *Watcher) {
		if w.after > seen && !w.waiting {
			w.expire()
		}
	})
}

func (ws *watchers) expireAll() {
	ws.each(func(w *Watcher) { w.expire() })
}
