package handlers

import (
	"context"
	"errors"
	"net/http"
	"time"

	"golang.org/x/net/websocket"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"quorate.dev/apiserver/codec"
	"quorate.dev/apiserver/encoding"
	"quorate.dev/apiserver/registry"
	"quorate.dev/apiserver/request"
	"quorate.dev/apiserver/watchcache"
)

const (
	// bookmarkInterval is the time after which a watch sends a bookmark.
	bookmarkInterval = time.Minute
	// bookmarkLead is the time before the end of a watch at which it sends its last bookmark.
	bookmarkLead = 2 * time.Second
)

// stream is the response to one watch.
type stream struct {
	*call
	format  encoding.Format
	changes *registry.Watch
	// seen is the revision of the next bookmark. Invariant: when a bookmark is sent, the client has received all events
	// up to seen.
	seen      int64
	bookmarks bool
	// table is the format of table rows; nil if events contain objects.
	table *encoding.Table
	// socket is the WebSocket that carries the frames; nil if they are the body of the response.
	socket *websocket.Conn
	// guard aborts writes that the client does not read; nil with a socket.
	guard *writeGuard
	// compressed is set if the body is compressed for clients that accept gzip.
	compressed bool
	// gzip is the compressed body; nil if the body is not compressed.
	gzip *gzipBody
	// counts is nil if nothing is measured.
	counts *eventCounts
}

// open establishes the stream, as the body of the response or as messages of a WebSocket, and calls run.
func (s *stream) open(ctx context.Context, run func(context.Context)) {
	if wsstream.IsWebSocketRequest(s.r) {
		s.serveWebSocket(ctx, run)
		return
	}
	s.guard = newWriteGuard(s.w, s.writeTimeout)
	defer s.guard.stop()
	defer context.AfterFunc(ctx, func() { s.guard.shorten(min(lastWriteTimeout, s.writeTimeout)) })()
	s.begin()
	run(ctx)
}

// begin sends the header of the response before the first event, because clients wait for it.
func (s *stream) begin() {
	header := s.w.Header()
	header["Content-Type"] = []string{s.output.contentType(true)}
	header.Set("Transfer-Encoding", "chunked")
	if s.r.ProtoMajor > 1 {
		header.Del("Transfer-Encoding")
	}
	if s.compressed && request.CompressesWatch(s.r) {
		header.Set("Content-Encoding", "gzip")
		header.Add("Vary", "Accept-Encoding")
		s.gzip = &gzipBody{w: s.w}
	}
	s.w.WriteHeader(http.StatusOK)
	s.flush()
}

// flush sends the bytes that have been written to the body.
func (s *stream) flush() {
	flusher, ok := s.w.(http.Flusher)
	if !ok || s.socket != nil {
		return
	}
	s.guard.begin()
	defer s.guard.end()
	if s.gzip != nil {
		s.gzip.flush()
	}
	flusher.Flush()
}

// run sends events, and bookmarks if the client allows them, until ctx ends or a write fails.
func (s *stream) run(ctx context.Context) {
	deadline, _ := ctx.Deadline()
	for {
		next := s.Clock.Now().Add(bookmarkInterval)
		last := deadline.Add(-bookmarkLead)
		if next.After(last) && last.After(s.Clock.Now()) {
			next = last
		}
		if !s.until(ctx, next) || ctx.Err() != nil {
			return
		}
		if s.bookmarks && !s.catchUp(ctx) {
			return
		}
	}
}

// catchUp sends all available events and then a bookmark; a client that resumed at a bookmark sent before them would
// miss these events. It reports whether the stream continues.
func (s *stream) catchUp(ctx context.Context) bool {
	for ctx.Err() == nil {
		events, revision, err := s.changes.Poll(ctx)
		if err != nil {
			s.fail(err)
			return false
		}
		if !s.sendEvents(events, revision) {
			return false
		}
		if behind := len(events) > 0 && events[len(events)-1].Revision > revision; !behind {
			return s.sendBookmark(nil)
		}
	}
	return false
}

// until sends events until the time end. It reports whether the stream continues.
func (s *stream) until(ctx context.Context, end time.Time) bool {
	waiting, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	for {
		events, revision, err := s.changes.Next(waiting)
		switch {
		case err != nil && waiting.Err() != nil:
			return ctx.Err() == nil
		case err != nil:
			s.fail(err)
			return false
		case !s.sendEvents(events, revision):
			return false
		// The deadline is checked after sending, because Next does not return the same events twice.
		case waiting.Err() != nil:
			return ctx.Err() == nil
		}
	}
}

// sendEvents sends events, after which the client has seen all events up to revision. It reports whether the stream
// continues. Events are sent in few writes, because each write costs a system call and a switch to the connection's
// goroutine. A batch causes no delay: it consists of the events that arrived during the previous write.
func (s *stream) sendEvents(events []registry.WatchEvent, revision int64) bool {
	s.seen = max(s.seen, revision)
	if len(events) == 0 {
		return true
	}
	pooled := chunks.Get().(*[]byte)
	defer chunks.Put(pooled)
	batch := (*pooled)[:0]
	for i := range events {
		frame, err := s.eventFrame(&events[i])
		if err != nil {
			s.fail(encodingError(err))
			return false
		}
		s.count(frame)
		if len(batch)+len(frame) > cap(batch) {
			if !s.send(batch) {
				return false
			}
			batch = batch[:0]
		}
		if len(events) == 1 || len(frame) > cap(batch) || s.socket != nil {
			if !s.send(frame) {
				return false
			}
			continue
		}
		batch = append(batch, frame...)
	}
	if !s.send(batch) {
		return false
	}
	s.flush()
	return true
}

// sendInitial sends the initial state as ADDED events and, if markEnd is set, the bookmark that ends them. It reports
// whether the stream continues.
func (s *stream) sendInitial(markEnd bool, selection registry.Selection) bool {
	entries := s.changes.Initial
	s.changes.Initial = nil // sendEntries drops them one by one: the watch must not keep entries that the cache replaces
	some := len(entries) > 0
	if !s.sendEntries(entries) {
		return false
	}
	if markEnd {
		marked := s.sendBookmark(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
		if marked {
			s.watchListed(selection)
		}
		return marked
	}
	if some {
		s.flush()
	}
	return true
}

// sendEntries sends ADDED events of entries in few writes, because each write costs a switch to the connection's
// goroutine, and clears the entries. It reports whether the stream continues.
func (s *stream) sendEntries(entries []*watchcache.Entry) bool {
	pooled := initials.Get().(*[]byte)
	defer initials.Put(pooled)
	batch := (*pooled)[:0]
	for i, entry := range entries {
		begin := len(batch)
		var err error
		if batch, err = s.appendInitial(batch, entry); err != nil {
			if s.send(batch[:begin]) {
				s.fail(encodingError(err))
			}
			return false
		}
		entries[i] = nil
		s.count(batch[begin:])
		if len(batch) < initialChunkSize && s.socket == nil {
			continue
		}
		if !s.send(batch) {
			return false
		}
		batch = (*pooled)[:0] // not the larger buffer of a large entry, which a client that does not read would hold
	}
	return s.send(batch)
}

// count adds the frame of an event to the metrics.
func (s *stream) count(frame []byte) {
	if s.counts != nil {
		s.counts.add(len(frame))
	}
}

func (s *stream) send(frame []byte) bool {
	if len(frame) == 0 {
		return true
	}
	if s.socket != nil {
		return s.sendMessage(frame)
	}
	for len(frame) > 0 {
		chunk := frame[:min(len(frame), writeChunk)]
		if !s.write(chunk) {
			return false
		}
		frame = frame[len(chunk):]
	}
	return true
}

func (s *stream) write(chunk []byte) bool {
	s.guard.begin()
	defer s.guard.end()
	var err error
	if s.gzip != nil {
		_, err = s.gzip.Write(chunk)
	} else {
		_, err = s.w.Write(chunk)
	}
	return err == nil
}

// fail ends the stream with an ERROR event. It sends no event when the definition of the resource has changed, because
// clients then reconnect, or when kube-apiserver sends none either.
func (s *stream) fail(err error) {
	if errors.Is(err, watchcache.ErrDropped) || errors.Is(err, errNoList) {
		return
	}
	status := request.StatusOf(err)
	kind := metav1.Unversioned.WithKind("Status")
	item, encodeErr := codec.Item(s.format.Media, status)
	if encodeErr != nil {
		return
	}
	s.send(encoding.Envelope{Media: s.format.Media, Kind: kind}.Frame(watch.Error, item))
	s.flush()
}

// sendBookmark sends a bookmark with the revision seen. It reports whether the stream continues.
func (s *stream) sendBookmark(annotations map[string]string) bool {
	frame, err := s.bookmarkFrame(annotations)
	if err != nil {
		s.fail(encodingError(err))
		return false
	}
	s.count(frame)
	if !s.send(frame) {
		return false
	}
	s.flush()
	return true
}
