package floor

import (
	"bytes"
	"net/http"
	"sync"
)

// watchers sends events to all open watch requests. The zero value has none.
type watchers struct {
	mu  sync.Mutex
	all map[chan []byte]bool
}

// queued is the number of events that a watcher may be behind. The server ends the watch of a client that falls further
// behind.
const queued = 4096

// send sends an event to all watchers: the body of an update as one line of the given size.
func (w *watchers) send(update []byte, size int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.all) == 0 {
		return
	}
	event := bytes.TrimSpace(update)
	if missing := size - len(event) - 1; missing > 0 {
		event = append(event, bytes.Repeat([]byte(" "), missing)...)
	}
	event = append(event, '\n')
	for events := range w.all {
		select {
		case events <- event:
		default:
			delete(w.all, events)
			close(events)
		}
	}
}

// serve sends events until the client ends the request. Events that are waiting share one write.
func (w *watchers) serve(to http.ResponseWriter, r *http.Request) {
	events := make(chan []byte, queued)
	w.add(events)
	defer w.remove(events)
	flusher := to.(http.Flusher)
	flusher.Flush()
	for {
		select {
		case <-r.Context().Done():
			return
		case event, ok := <-events:
			if !ok {
				return
			}
			for n := len(events); n > 0; n-- {
				event = append(event[:len(event):len(event)], <-events...)
			}
			if _, err := to.Write(event); err != nil {
				return
			}
			flusher.Flush()
		}
	}
}

func (w *watchers) add(events chan []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.all == nil {
		w.all = map[chan []byte]bool{}
	}
	w.all[events] = true
}

func (w *watchers) remove(events chan []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.all, events)
}
