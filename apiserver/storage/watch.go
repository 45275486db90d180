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
	Data     []byte // nil: deleted. An empty value is not nil. Encrypted until Decrypt.
	Revision int64
	Created  int64  // etcd's CreateRevision; 0: deleted
	Previous []byte // the replaced value; only in streams of History. Encrypted until Decrypt.
	Replaced int64  // revision of Previous; 0: none
}

// Batch is a sequence of events in the order of their revisions. It never ends in the middle of a revision, because
// etcd sends all events of a revision in one response (WithFragment is reassembled by the client).
type Batch struct {
	Events   []Event
	Revision int64 // all events up to this revision have been delivered
}

// WatchStream delivers the changes below a prefix. It is the only watch on its gRPC stream. On a shared stream
// progress responses are ambiguous: etcd answers a progress request for all watches of the stream, and the client
// passes the answer to every watch that it knows when the answer arrives. etcd may confirm a new watch before it
// sends an older answer. The new watch would then take the revision of the other watches for its own and skip events
// that it has not received yet. A watch that catches up also delays no progress of others.
//
// One goroutine receives from etcd and one calls Next. They share pending and err under mu; received only wakes Next.
type WatchStream struct {
	store    *Store
	ctx      context.Context // carries streamKey, so that progress requests use the same stream
	cancel   context.CancelFunc
	received chan struct{} // capacity 1: pending or err was set since the last take

	mu sync.Mutex
	// pending has the events that were received since the last take. Its Revision is 0 if there was no response; it
	// is never below the revision of its last event.
	pending Batch
	err     error // terminal; returned once pending is empty
}

// Watch watches all keys below the store's prefix after a revision. The stream ends with ctx or Close.
func (s *Store) Watch(ctx context.Context, after int64) (*WatchStream, error) {
	return s.watch(ctx, "", after), nil
}

// History watches one collection, whose prefix ends in a slash, or one path, after a revision. Its events have the
// replaced values.
func (s *Store) History(ctx context.Context, prefix string, after int64) (*WatchStream, error) {
	return s.watch(ctx, prefix, after, clientv3.WithPrevKV()), nil
}

// streamKey is a gRPC metadata key. The etcd client opens one stream per distinct outgoing metadata, so that a random
// value gives each WatchStream its own.
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

// Next waits for a response and returns everything received. Errors are terminal: after ErrCompacted events are lost,
// after ErrUnavailable a new stream can continue at the last revision.
func (w *WatchStream) Next(ctx context.Context) (Batch, error) {
	for {
		if batch, err, ok := w.take(); ok {
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
// etcd does not send one while the watch lags. After the end of the stream the error is its terminal error.
func (w *WatchStream) RequestProgress() error {
	if err := w.ended(); err != nil { // the client would open a stream for the request and leak it
		return fmt.Errorf("requesting progress: %w", err)
	}
	err := w.store.client.RequestProgress(w.ctx)
	if err == nil {
		return nil
	}
	if ended := w.ended(); ended != nil { // meanwhile
		return fmt.Errorf("requesting progress: %w", ended)
	}
	return fmt.Errorf("requesting progress: %w", classify(err))
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

func (w *WatchStream) take() (Batch, error, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pending.Revision > 0 {
		batch := w.pending
		w.pending = Batch{}
		return batch, nil, true
	}
	return Batch{}, w.err, w.err != nil
}

// receive merges the responses into one batch, so that a slow reader needs one Next for all of them.
func (w *WatchStream) receive(responses clientv3.WatchChan) {
	defer w.cancel()
	for response := range responses {
		if err := response.Err(); err != nil {
			w.fail(fmt.Errorf("watching: %w", classify(err)))
			return
		}
		w.add(response)
	}
	w.fail(fmt.Errorf("watching: %w: the stream has ended", ErrUnavailable))
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
