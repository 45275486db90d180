package handlers

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"golang.org/x/net/websocket"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"quorate.dev/apiserver/codec"
	"quorate.dev/apiserver/registry"
	"quorate.dev/apiserver/request"
	"quorate.dev/apiserver/watchcache"
)

// bookmarkInterval is how often a client that wants bookmarks gets one when nothing else happens.
const bookmarkInterval = time.Minute

// bookmarkLead is how long before its end a watch sends a last bookmark.
const bookmarkLead = 2 * time.Second

// watch streams changes until the client's time is up, the client goes, or the server stops.
func (c *call) watch(ctx context.Context) error {
	options, selection, err := c.listOptions()
	if err != nil {
		return err
	}
	asked := options.SendInitialEvents
	initial := asked != nil && *asked
	unasked := asked == nil && (options.ResourceVersion == "" || options.ResourceVersion == "0")
	ctx, cancel := context.WithTimeout(ctx, c.watchDuration(options.TimeoutSeconds))
	defer cancel()
	target := c.target
	changes, err := c.Registry.Watch(ctx, target, registry.WatchOptions{
		Selection:       selection,
		ResourceVersion: options.ResourceVersion,
		InitialEvents:   initial || unasked,
	})
	lost := apierrors.IsResourceExpired(err) || apierrors.IsTimeout(err)
	if err != nil && !lost {
		return err
	}
	if err == nil {
		defer changes.Close()
	}
	columns, negotiated := c.streamOptions()
	if negotiated != nil {
		return negotiated
	}
	if lost {
		return c.failAtOnce(err)
	}
	s := &stream{call: c, encoder: c.encoder(), changes: changes, seen: changes.Start, bookmarks: options.AllowWatchBookmarks, columns: columns}
	s.open(ctx, func(ctx context.Context) {
		if s.sendInitial(initial && options.AllowWatchBookmarks, selection) {
			s.run(ctx)
		}
	})
	return nil
}

// streamOptions are those of table rows, nil where there are none. It fails if there is no stream of what was accepted.
func (c *call) streamOptions() (*metav1.TableOptions, error) {
	if c.output.as != table {
		return nil, c.output.streamable()
	}
	options, err := c.tableOptions()
	if err != nil {
		return nil, err
	}
	return options, c.output.streamable()
}

// watchDuration is what the client asks for, or a random time between the least and twice that, so that clients that
// began together do not come back together.
func (c *call) watchDuration(asked *int64) time.Duration {
	if asked != nil && *asked > 0 {
		return time.Duration(*asked) * time.Second
	}
	return time.Duration(float64(c.MinWatchTimeout) * (1 + rand.Float64()))
}

// failAtOnce tells a client by an event, as clients expect of a watch, that it starts too far back or that the server
// does not come to where it starts.
func (c *call) failAtOnce(err error) error {
	s := &stream{call: c, encoder: c.encoder()}
	s.open(c.r.Context(), func(context.Context) { s.fail(err) })
	return nil
}

// stream is one watch being answered.
type stream struct {
	*call
	encoder   encoder
	changes   *registry.Watch
	seen      int64 // revision up to which the client knows everything
	bookmarks bool
	columns   *metav1.TableOptions // of a watch of table rows
	socket    *websocket.Conn      // nil: frames are the response's body
	guard     *writeGuard          // of the response's body
}

// open calls run with the stream in the form the client wants: the response's body, or messages of a WebSocket.
func (s *stream) open(ctx context.Context, run func(context.Context)) {
	if wsstream.IsWebSocketRequest(s.r) {
		s.overSocket(ctx, run)
		return
	}
	s.guard = newWriteGuard(s.w, s.writeTimeout)
	defer s.guard.stop()
	defer context.AfterFunc(ctx, func() { s.guard.shorten(min(lastWriteTimeout, s.writeTimeout)) })()
	s.begin()
	run(ctx)
}

// begin sends the header, so that the client knows that its watch is established.
func (s *stream) begin() {
	header := s.w.Header()
	header["Content-Type"] = []string{s.output.contentType(true)}
	header.Set("Transfer-Encoding", "chunked")
	if s.r.ProtoMajor > 1 {
		header.Del("Transfer-Encoding")
	}
	s.w.WriteHeader(http.StatusOK)
	s.flush()
}

// flush sends what has been written.
func (s *stream) flush() {
	flusher, ok := s.w.(http.Flusher)
	if !ok || s.socket != nil {
		return
	}
	s.guard.begin()
	defer s.guard.end()
	flusher.Flush()
}

// run streams until ctx ends or something fails.
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

// catchUp sends what has come meanwhile and a bookmark at the revision the client then knows.
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

// until streams events until a moment; false: the stream is over.
func (s *stream) until(ctx context.Context, moment time.Time) bool {
	waiting, cancel := context.WithDeadline(ctx, moment)
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
		case waiting.Err() != nil: // what was taken in the last moment has been sent: it does not come again
			return ctx.Err() == nil
		}
	}
}

// sendEvents sends what happened up to a revision, in as few writes as it takes: each write is a turn of the
// connection's goroutine and a system call. No event waits for others: those that come while the connection is busy with
// earlier ones gather by themselves, and are sent together when it is their turn.
func (s *stream) sendEvents(events []registry.WatchEvent, revision int64) bool {
	s.seen = max(s.seen, revision)
	if len(events) == 0 {
		return true
	}
	pooled := chunks.Get().(*[]byte)
	defer chunks.Put(pooled)
	together := (*pooled)[:0]
	for i := range events {
		frame, err := s.eventFrame(&events[i])
		if err != nil {
			s.fail(encodingError(err))
			return false
		}
		if len(together)+len(frame) > cap(together) {
			if !s.send(together) {
				return false
			}
			together = together[:0]
		}
		if len(events) == 1 || len(frame) > cap(together) || s.socket != nil {
			if !s.send(frame) {
				return false
			}
			continue
		}
		together = append(together, frame...)
	}
	if !s.send(together) {
		return false
	}
	s.flush()
	return true
}

// sendInitial sends the state the watch starts from, and a bookmark that ends it.
func (s *stream) sendInitial(markEnd bool, selection registry.Selection) bool {
	for _, entry := range s.changes.Initial {
		frame, err := s.entryFrame(watch.Added, entry)
		if err != nil {
			s.fail(encodingError(err))
			return false
		}
		if !s.send(frame) {
			return false
		}
	}
	if markEnd {
		marked := s.sendBookmark(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
		if marked {
			s.watchListed(selection)
		}
		return marked
	}
	if len(s.changes.Initial) > 0 {
		s.flush()
	}
	return true
}

func (s *stream) send(frame []byte) bool {
	if len(frame) == 0 {
		return true
	}
	if s.socket != nil {
		return s.sendMessage(frame)
	}
	for len(frame) > 0 {
		piece := frame[:min(len(frame), writePiece)]
		if !s.write(piece) {
			return false
		}
		frame = frame[len(piece):]
	}
	return true
}

func (s *stream) write(piece []byte) bool {
	s.guard.begin()
	defer s.guard.end()
	_, err := s.w.Write(piece)
	return err == nil
}

// eventFrame returns the frame of an event, which all watchers that see it the same way share.
func (s *stream) eventFrame(event *registry.WatchEvent) ([]byte, error) {
	if s.columns != nil {
		return s.tableFrame(event.Type, s.visibleState(event))
	}
	return event.Encoded(&s.encoder.formats[frameOf(event.Type)], func() ([]byte, error) {
		return s.entryFrame(event.Type, s.visibleState(event))
	})
}

// shown is the state of the object that the client gets to see: the last one that it was allowed to see, at the
// revision of the event, when the object goes out of sight.
func (s *stream) visibleState(event *registry.WatchEvent) *watchcache.Entry {
	if event.Type == watch.Deleted && event.Event.Type != watchcache.Deleted {
		return event.Hidden()
	}
	return event.Entry
}

func (s *stream) entryFrame(kind watch.EventType, entry *watchcache.Entry) ([]byte, error) {
	if s.output.list {
		return nil, errNoList
	}
	if s.columns != nil {
		return s.tableFrame(kind, entry)
	}
	item, err := s.encoder.item(entry)
	if err != nil {
		return nil, err
	}
	return codec.WatchFrame(s.encoder.media, string(kind), s.encoder.kind, s.encoder.head, item), nil
}

// tableFrame renders one row. The first frame of a stream names the columns.
func (s *stream) tableFrame(kind watch.EventType, entry *watchcache.Entry) ([]byte, error) {
	internal, err := s.Registry.Decode(s.target, entry)
	if err != nil {
		return nil, err
	}
	return s.rowFrame(kind, internal)
}

func (s *stream) rowFrame(kind watch.EventType, internal runtime.Object) ([]byte, error) {
	item, err := s.tableOfOne(internal, s.columns)
	if err != nil {
		return nil, err
	}
	s.columns.NoHeaders = true
	return codec.WatchFrame(codec.JSON, string(kind), s.output.group.WithKind("Table"), nil, item), nil
}

// sendBookmark tells the client up to which revision it knows everything.
func (s *stream) sendBookmark(annotations map[string]string) bool {
	frame, err := s.bookmarkFrame(annotations)
	if err != nil {
		s.fail(encodingError(err))
		return false
	}
	if !s.send(frame) {
		return false
	}
	s.flush()
	return true
}

func (s *stream) bookmarkFrame(annotations map[string]string) ([]byte, error) {
	if s.output.list {
		return nil, errNoList
	}
	if s.columns != nil {
		return s.tableBookmark(annotations)
	}
	internal, err := s.emptyObject(annotations)
	if err != nil {
		return nil, err
	}
	external := internal
	if s.output.as == whole {
		if external, err = s.target.Version.Codec.External(internal); err != nil {
			return nil, err
		}
	}
	item, err := s.encoder.external(external)
	if err != nil {
		return nil, err
	}
	return codec.WatchFrame(s.encoder.media, string(watch.Bookmark), s.encoder.kind, s.encoder.head, item), nil
}

func (s *stream) tableBookmark(annotations map[string]string) ([]byte, error) {
	internal, err := s.emptyObject(annotations)
	if err != nil {
		return nil, err
	}
	return s.rowFrame(watch.Bookmark, internal)
}

// emptyObject is what a bookmark shows, in the internal version.
func (s *stream) emptyObject(annotations map[string]string) (runtime.Object, error) {
	internal := s.target.Version.Codec.New()
	accessor, err := meta.Accessor(internal)
	if err != nil {
		return nil, err
	}
	accessor.SetResourceVersion(strconv.FormatInt(s.seen, 10))
	accessor.SetAnnotations(annotations)
	return internal, nil
}

// errNoList ends a watch of lists of metadata at its first event, which is none.
var errNoList = errors.New("an event is no list")

// fail ends the stream with an ERROR event; without one when the resource's definition has changed and the client
// is to come back, and where kube-apiserver has none.
func (s *stream) fail(err error) {
	if errors.Is(err, watchcache.ErrDropped) || errors.Is(err, errNoList) {
		return
	}
	status := request.StatusOf(err)
	kind := metav1.Unversioned.WithKind("Status")
	item, encodeErr := codec.Item(s.encoder.media, status)
	if encodeErr != nil {
		return
	}
	head := codec.Head(kind)
	s.send(codec.WatchFrame(s.encoder.media, string(watch.Error), kind, head, item))
	s.flush()
}
