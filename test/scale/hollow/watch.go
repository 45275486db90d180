package hollow

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"quorate.dev/test/scale/wire"
)

// errEnded is the reason for which a watch is resumed after the server has ended it early.
var errEnded = errors.New("the server ended the watch before its timeout")

// Event is a change that a watch has received. Its object is valid until the function that receives it returns.
type Event struct {
	Type   string
	Object []byte
	Meta   wire.Metadata
}

// Watch holds one watch of a client.
type Watch struct {
	client *Client
	path   string             // path and query without the parameters of watches
	each   func(event *Event) // receives events after the initial ones; may be nil

	mu       sync.Mutex
	frames   wire.Frames
	status   int
	problem  bytes.Buffer // body of a response with another status than 200
	deadline time.Time    // when the server ends the watch as requested
	attempt  int          // attempts since the watch was last in sync
	revision uint64       // last received revision; 0: the watch begins with the initial state
	inSync   bool
	fault    error     // the last event, if it was an error
	events   int64     // events after the initial ones, since the last call of Recount
	times    sendTimes // of the events
	gap      bool      // the watch was not in sync at the last call of Recount, or has begun again since
}

// open sends the request of the watch. An error means that the connection has ended.
func (w *Watch) open(connection *wire.Connection) error {
	w.mu.Lock()
	if err := connection.Err(); err != nil {
		w.mu.Unlock()
		return err // the watch may be open on the next connection
	}
	seconds := 300 + rand.IntN(300) // as reflectors do
	w.deadline = time.Now().Add(time.Duration(seconds) * time.Second)
	w.frames, w.status, w.fault = wire.Frames{}, 0, nil
	w.problem.Reset()
	path := w.url(seconds)
	w.mu.Unlock()
	_, err := connection.Start(wire.Request{Method: http.MethodGet, Path: path, Accept: wire.ProtobufStream},
		&attempt{watch: w, connection: connection})
	return err
}

// url returns the path of the request. The caller holds w.mu.
func (w *Watch) url(seconds int) string {
	separator := "?"
	if strings.Contains(w.path, "?") {
		separator = "&"
	}
	path := w.path + separator + "watch=true&allowWatchBookmarks=true&timeoutSeconds=" + strconv.Itoa(seconds)
	if w.revision == 0 {
		return path + "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan"
	}
	return path + "&resourceVersion=" + strconv.FormatUint(w.revision, 10)
}

// attempt handles the response of one request of a watch.
type attempt struct {
	watch      *Watch
	connection *wire.Connection
}

// Start notes the status. A watch that is resumed is in sync when the server has accepted it.
func (a *attempt) Start(status int, _ string) {
	w := a.watch
	w.mu.Lock()
	defer w.mu.Unlock()
	w.status = status
	if status == http.StatusOK && w.revision > 0 {
		w.synchronize()
	}
}

// synchronize marks the watch as in sync. The caller holds w.mu.
func (w *Watch) synchronize() {
	if !w.inSync {
		w.inSync, w.attempt = true, 0
		w.client.stats.InSync.Add(1)
	}
}

// Data handles the events in a part of the response.
func (a *attempt) Data(part []byte) {
	w := a.watch
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.status != http.StatusOK {
		w.problem.Write(part[:min(len(part), 300)])
		return
	}
	now := time.Now()
	if err := w.frames.Split(part, func(frame []byte) error { return w.receive(frame, now) }); err != nil {
		w.client.stats.Report(fmt.Errorf("watch %s: %w", w.path, err))
		w.restart()
		a.connection.Close()
	}
}

// restart makes the next request begin with the initial state. The caller holds w.mu.
func (w *Watch) restart() {
	w.revision, w.gap = 0, true
	w.client.stats.Relisted.Add(1)
}

// receive handles one event. An error ends the watch, which then begins with the initial state.
func (w *Watch) receive(frame []byte, now time.Time) error {
	kind, object, err := wire.ParseEvent(frame)
	if err != nil {
		return err
	}
	if kind == "ERROR" {
		message, err := wire.Field(object, 3)
		w.fault = errors.Join(err, fmt.Errorf("the server sent an error: %s", message))
		w.restart()
		return nil
	}
	meta, err := wire.ParseMetadata(object)
	if err != nil {
		return err
	}
	if kind == "BOOKMARK" && (w.inSync || meta.InitialEventsEnd) {
		if !w.inSync {
			w.times.begin(now)
		}
		w.revision = meta.Revision
		w.synchronize()
		return nil
	}
	if !w.inSync {
		return nil // an initial event; its revision is no position in the history
	}
	w.revision = meta.Revision
	w.events++
	w.observe(&meta, now)
	if w.each != nil {
		w.each(&Event{Type: kind, Object: object, Meta: meta})
	}
	return nil
}

// observe counts an event and its delay.
func (w *Watch) observe(meta *wire.Metadata, now time.Time) {
	w.client.stats.Delivered.Add(1)
	if !meta.Deleting && w.times.isNew(meta.Sent) {
		w.client.stats.Timings().Events.Add(now.Sub(time.Unix(0, meta.Sent)))
	}
}

// End resumes the watch if its connection still exists; otherwise the client does.
func (a *attempt) End(err error) {
	w := a.watch
	w.mu.Lock()
	defer w.mu.Unlock()
	wasInSync := w.inSync
	if w.inSync {
		w.inSync = false
		w.client.stats.InSync.Add(-1)
	}
	if w.client.ended() {
		return
	}
	w.account(wasInSync, err)
	if a.connection.Err() == nil {
		w.attempt++
		time.AfterFunc(backoff(w.attempt), func() { _ = w.open(a.connection) }) // the client reopens after its error
	}
}

// account counts the end of a watch. The caller holds w.mu.
func (w *Watch) account(wasInSync bool, err error) {
	stats := w.client.stats
	err = errors.Join(err, w.fault)
	timeout := err == nil && wasInSync && !time.Now().Before(w.deadline.Add(-time.Second))
	switch {
	case w.status != http.StatusOK:
		w.refuse(err)
	case !timeout && !stats.Disturbed.Load():
		stats.Lost.Add(1)
		stats.Report(fmt.Errorf("watch %s: %w", w.path, cmp.Or(err, errEnded)))
	}
}

// refuse counts a request that was not accepted. The caller holds w.mu.
func (w *Watch) refuse(err error) {
	stats := w.client.stats
	if w.status == http.StatusGone {
		w.restart()
	}
	if !stats.Disturbed.Load() {
		stats.Refused.Add(1)
		refusal := fmt.Errorf("watch %s: status %d: %s", w.path, w.status, bytes.TrimSpace(w.problem.Bytes()))
		stats.Report(errors.Join(refusal, err))
	}
}

// Recount starts counting events at 0.
func (w *Watch) Recount() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events, w.gap = 0, !w.inSync
}

// HasGap reports whether the watch was not in sync at the last call of Recount, or has begun again since then.
func (w *Watch) HasGap() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.gap
}

// Received returns the number of events since the last call of Recount.
func (w *Watch) Received() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.events
}

// Missing returns how many of the expected events since the last call of Recount the watch has not received.
func (w *Watch) Missing(expected int64) int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.gap {
		return 0 // the watch is counted as lost
	}
	return max(expected-w.events, 0)
}
