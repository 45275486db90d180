package storage

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"
)

// Event is a change of one path.
type Event struct {
	Path     string
	Data     []byte // nil: deleted
	Revision int64
	Created  int64  // revision of the write that created the path; 0: deleted
	Previous []byte // what was stored before, in feeds of History only
	Replaced int64  // revision of Previous; 0: none
}

// Batch is a run of events in the order of their revisions. It never ends in the middle of a revision.
type Batch struct {
	Events   []Event
	Revision int64 // everything up to this revision has been delivered
}

// Feed delivers the changes below a prefix. It has a stream to etcd of its own: etcd's answer to a progress request is
// for all watches of the stream that the request came by, and the client hands it to every watch that it knows when the
// answer arrives. etcd, however, may announce a watch before it sends an answer that it gave earlier: the new watch
// would take for its own progress what others had seen, and pass over what it has not been sent yet. Alone on its
// stream, a watch hears of no progress but its own; nor do others wait for theirs while it catches up.
type WatchStream struct {
	store    *Store
	ctx      context.Context // carries what identifies the stream, for progress requests
	cancel   context.CancelFunc
	received chan struct{} // capacity 1: something is pending

	mu      sync.Mutex
	pending Batch
	err     error
}

// Watch follows everything below the store's prefix after a revision. The feed ends with ctx or Close.
func (s *Store) Watch(ctx context.Context, after int64) (*WatchStream, error) {
	return s.feed(ctx, "", after), nil
}

// History follows one collection after a revision, with what each change replaced.
func (s *Store) History(ctx context.Context, prefix string, after int64) (*WatchStream, error) {
	return s.feed(ctx, prefix, after, clientv3.WithPrevKV()), nil
}

// streamKey is the name of the metadata that makes the client give each feed a stream of its own.
const streamKey = "quorate-feed"

func (s *Store) feed(ctx context.Context, prefix string, after int64, options ...clientv3.OpOption) *WatchStream {
	ctx = metadata.AppendToOutgoingContext(clientv3.WithRequireLeader(ctx), streamKey, rand.Text())
	ctx, cancel := context.WithCancel(ctx)
	f := &WatchStream{store: s, ctx: ctx, cancel: cancel, received: make(chan struct{}, 1)}
	options = append(options, clientv3.WithPrefix(), clientv3.WithRev(after+1),
		clientv3.WithFragment(), clientv3.WithProgressNotify())
	go f.receive(s.client.Watch(ctx, s.Key(prefix), options...))
	return f
}

// Close ends the feed and gives back what it holds.
func (f *WatchStream) Close() { f.cancel() }

// Next waits for news and returns all that has been received. Its errors end the feed: ErrCompacted if events
// have been lost for ever, ErrUnavailable if a new feed after the last revision may go on.
func (f *WatchStream) Next(ctx context.Context) (Batch, error) {
	for {
		if batch, err, ok := f.take(); ok {
			return batch, err
		}
		select {
		case <-f.received:
		case <-ctx.Done():
			return Batch{}, ctx.Err()
		}
	}
}

// RequestProgress asks etcd to tell how far the feed has come. The answer is a batch, perhaps without events;
// there is none while the feed lags behind.
func (f *WatchStream) RequestProgress() error {
	if f.ctx.Err() != nil { // the client would open a stream for the request, and never close it
		return fmt.Errorf("requesting progress: %w: the feed has ended", ErrUnavailable)
	}
	if err := f.store.client.RequestProgress(f.ctx); err != nil {
		return fmt.Errorf("requesting progress: %w", classify(err))
	}
	return nil
}

func (f *WatchStream) take() (Batch, error, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.pending.Revision > 0 {
		batch := f.pending
		f.pending = Batch{}
		return batch, nil, true
	}
	return Batch{}, f.err, f.err != nil
}

// receive collects what etcd sends, so that Next finds all of it at once.
func (f *WatchStream) receive(responses clientv3.WatchChan) {
	defer f.cancel()
	for response := range responses {
		if err := response.Err(); err != nil {
			f.fail(fmt.Errorf("watching: %w", classify(err)))
			return
		}
		f.add(response)
	}
	f.fail(fmt.Errorf("watching: %w: the stream has ended", ErrUnavailable))
}

func (f *WatchStream) add(response clientv3.WatchResponse) {
	f.mu.Lock()
	for _, event := range response.Events {
		f.pending.Events = append(f.pending.Events, f.event(event))
	}
	if n := len(response.Events); n > 0 {
		f.pending.Revision = response.Events[n-1].Kv.ModRevision
	} else if response.IsProgressNotify() {
		f.pending.Revision = max(f.pending.Revision, response.Header.Revision)
	}
	f.mu.Unlock()
	f.notify()
}

func (f *WatchStream) event(e *clientv3.Event) Event {
	event := Event{Path: string(e.Kv.Key[len(f.store.prefix):]), Revision: e.Kv.ModRevision}
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

func (f *WatchStream) fail(err error) {
	f.mu.Lock()
	f.err = err
	f.mu.Unlock()
	f.notify()
}

func (f *WatchStream) notify() {
	select {
	case f.received <- struct{}{}:
	default:
	}
}
