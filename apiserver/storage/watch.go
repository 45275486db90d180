package storage

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"
)

// Event is a change of one path.
type Event struct {
	Path     string
	Data     []byte // nil: the path was deleted; an empty value is not nil. Encrypted until Decrypt.
	Revision int64
	Created  int64  // etcd's CreateRevision; 0: the path was deleted
	Previous []byte // replaced value, only set by streams of History; encrypted until Decrypt
	Replaced int64  // ModRevision of Previous; 0: there is no Previous
}

// Batch is a sequence of events in the order of their revisions. It never ends in the middle of a revision, because
// etcd sends all events of a revision in one response, which the client reassembles from its fragments
// (WithFragment).
type Batch struct {
	Events   []Event
	Revision int64 // all events up to this revision have been delivered
}

// WatchStream delivers the changes below a prefix. It is the only watch on its gRPC stream, because progress
// notifications are ambiguous if watches share a stream: etcd responds to a progress request once for all watches of
// the stream, and the client delivers the response to every watch that exists when the response arrives. A watch that
// etcd has created before it sends an earlier response would then take over a revision that only the other watches have
// reached, and skip events. Furthermore, etcd does not respond to progress requests of a stream while any watch of the
// stream lags.
//
// One goroutine receives from etcd, and another one calls Next. They share pending and err, which mu guards. The
// channel received only wakes Next.
type WatchStream struct {
	store    *Store
	ctx      context.Context // carries streamKey, so that progress requests use the watch's gRPC stream
	cancel   context.CancelFunc
	received chan struct{} // capacity 1; has a value if pending or err was set since the last take

	mu sync.Mutex
	// pending has the events that were received since the last take. Its Revision is 0 if no response was received
	// since, and never less than the revision of its last event.
	pending Batch
	err     error // terminal; returned once pending is empty
}

// Watch watches all keys below the store's prefix after a revision. It does not wait for etcd. The stream ends with
// ctx or Close.
func (s *Store) Watch(ctx context.Context, after int64) (*WatchStream, error) {
	return s.watch(ctx, "", after), nil
}

// History watches one collection, whose prefix ends in a slash, or one path, after a revision. Its events have the
// replaced values. Like Watch, it does not wait for etcd.
func (s *Store) History(ctx context.Context, prefix string, after int64) (*WatchStream, error) {
	return s.watch(ctx, prefix, after, clientv3.WithPrevKV()), nil
}

// streamKey is a gRPC metadata key. The etcd client opens a separate stream for each distinct outgoing metadata. Each
// WatchStream sets a random value to get its own stream.
const streamKey = "quorate-feed"

func (s *Store) watch(ctx context.Context, prefix string, after int64, options ...clientv3.OpOption) *WatchStream {
	ctx = metadata.AppendToOutgoingContext(clientv3.WithRequireLeader(ctx), streamKey, rand.Text())
	ctx, cancel := context.WithCancel(ctx)
	w := &WatchStream{store: s, ctx: ctx, cancel: cancel, received: make(chan struct{}, 1)}
	options = append(options, clientv3.WithRev(after+1), clientv3.WithFragment(), clientv3.WithProgressNotify())
	if prefix == "" || strings.HasSuffix(prefix, "/") {
		options = append(options, clientv3.WithPrefix())
	}
	go w.receive(s.client.Watch(ctx, s.Key(prefix), options...))
	return w
}

// Close ends the stream.
func (w *WatchStream) Close() { w.cancel() }

// Next waits for a response of etcd and returns everything received. Errors are terminal: after ErrCompacted events
// are lost; after ErrUnavailable a new stream can continue at the revision of the last batch.
func (w *WatchStream) Next(ctx context.Context) (Batch, error) {
	for {
		if batch, ok, err := w.take(); ok {
			return batch, err
		}
		select {
		case <-w.received:
		case <-ctx.Done():
			return Batch{}, ctx.Err()
		}
	}
}

// RequestProgress requests a progress notification from etcd, which Next returns as a batch, possibly without events.
// etcd does not send one while the watch lags. After the end of the stream, the error is the stream's terminal error.
func (w *WatchStream) RequestProgress() error {
	if err := w.ended(); err != nil { // the client would open a new stream for the request and leak it
		return fmt.Errorf("request progress: %w", err)
	}
	err := w.store.client.RequestProgress(w.ctx)
	if err == nil {
		return nil
	}
	if ended := w.ended(); ended != nil { // the stream has ended during the request
		return fmt.Errorf("request progress: %w", ended)
	}
	return fmt.Errorf("request progress: %w", classify(err))
}

// ended returns the terminal error of a stream that has ended, or nil.
func (w *WatchStream) ended() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil && w.ctx.Err() != nil {
		return fmt.Errorf("%w: the watch stream is closed", ErrUnavailable)
	}
	return w.err
}

// take returns everything received since the last call, or the terminal error. It reports false if there is neither.
func (w *WatchStream) take() (Batch, bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pending.Revision > 0 {
		batch := w.pending
		w.pending = Batch{}
		return batch, true, nil
	}
	return Batch{}, w.err != nil, w.err
}

// receive adds the responses of etcd to pending until the watch ends. A slow caller of Next thus gets all pending
// responses as one batch.
func (w *WatchStream) receive(responses clientv3.WatchChan) {
	defer w.cancel()
	for response := range responses {
		if err := response.Err(); err != nil {
			w.fail(fmt.Errorf("watch: %w", classify(err)))
			return
		}
		w.add(response)
	}
	w.fail(fmt.Errorf("watch: %w: the stream has ended", ErrUnavailable))
}

func (w *WatchStream) add(response clientv3.WatchResponse) {
	w.mu.Lock()
	for _, event := range response.Events {
		w.pending.Events = append(w.pending.Events, w.event(event))
	}
	if n := len(response.Events); n > 0 {
		w.pending.Revision = response.Events[n-1].Kv.ModRevision
	} else if response.IsProgressNotify() {
		w.store.metrics.bookmarked()
		w.pending.Revision = max(w.pending.Revision, response.Header.Revision)
	}
	w.store.observe(w.pending.Revision)
	w.mu.Unlock()
	w.notify()
}

func (w *WatchStream) event(e *clientv3.Event) Event {
	event := Event{Path: string(e.Kv.Key[len(w.store.prefix):]), Revision: e.Kv.ModRevision}
	if e.Type == clientv3.EventTypePut {
		event.Data, event.Created = e.Kv.Value, e.Kv.CreateRevision
	}
	if event.Data == nil && e.Type == clientv3.EventTypePut {
		event.Data = []byte{}
	}
	if e.PrevKv != nil {
		event.Previous, event.Replaced = e.PrevKv.Value, e.PrevKv.ModRevision
	}
	return event
}

func (w *WatchStream) fail(err error) {
	w.mu.Lock()
	w.err = err
	w.mu.Unlock()
	w.notify()
}

func (w *WatchStream) notify() {
	select {
	case w.received <- struct{}{}:
	default:
	}
}
