package apiserver

import (
	"bytes"
	"context"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// bubble is a client of a real etcd for servers in a bubble of testing/synctest. Etcd is outside of the bubble: its
// clock is the real one. Requests run on goroutines outside, so that time in the bubble does not pass during a request.
// Before a write returns, all watches have received its events; so time does not pass between a write and its events
// either.
//
// Channels of a bubble must not be used outside, and goroutines in the bubble that wait for a channel of the outside
// stop the time. Therefore requests pass through calls, which are created outside, and events through queues under a
// mutex.
type bubble struct {
	clientv3.KV // has the methods that the server does not call

	t    *testing.T
	real *clientv3.Client
	idle chan *call
	jobs chan *call
	// before is called before each transaction, and after is called after each that has succeeded, outside of the bubble.
	// An error of before is the result of the transaction.
	before func(ctx context.Context, key string) error
	after  func(ctx context.Context, key string, previous *clientv3.GetResponse)

	mu       sync.Mutex
	received *sync.Cond
	watches  map[*bubbleWatch]struct{}
}

// call is a function that runs outside of the bubble.
type call struct {
	run  func()
	done chan struct{}
}

// maxCalls is the number of requests at the same time.
const maxCalls = 256

// newBubble must be called outside of the bubble.
func newBubble(t *testing.T, client *clientv3.Client) *bubble {
	b := &bubble{
		t: t, real: client, idle: make(chan *call, maxCalls), jobs: make(chan *call), watches: map[*bubbleWatch]struct{}{},
	}
	b.received = sync.NewCond(&b.mu)
	for range maxCalls {
		b.idle <- &call{done: make(chan struct{})}
		go func() {
			for c := range b.jobs {
				c.run()
				c.done <- struct{}{}
			}
		}()
	}
	t.Cleanup(func() { close(b.jobs) })
	return b
}

// outside runs a function outside of the bubble and then wakes the watches that have received something.
func (b *bubble) outside(run func()) {
	c := <-b.idle
	c.run = run
	b.jobs <- c
	<-c.done
	b.idle <- c
	b.deliver()
}

// client returns a client for the bubble, and must be called in it.
func (b *bubble) client(ctx context.Context) *clientv3.Client {
	client := clientv3.NewCtxClient(ctx)
	client.KV, client.Watcher = b, b
	client.Lease, client.Maintenance = bubbleLease{b.real.Lease, b}, bubbleMaintenance{b.real.Maintenance, b}
	return client
}

// Put implements clientv3.KV.
func (b *bubble) Put(
	ctx context.Context, key, value string, options ...clientv3.OpOption,
) (response *clientv3.PutResponse, err error) {
	b.outside(func() {
		if err = b.fault(ctx, key); err != nil {
			return
		}
		if response, err = b.real.Put(context.WithoutCancel(ctx), key, value, options...); err == nil {
			b.await(key, response.Header.Revision)
		}
	})
	return response, err
}

func (b *bubble) fault(ctx context.Context, key string) error {
	if b.before == nil {
		return nil
	}
	return b.before(context.WithoutCancel(ctx), key)
}

// Get implements clientv3.KV.
func (b *bubble) Get(
	ctx context.Context, key string, options ...clientv3.OpOption,
) (response *clientv3.GetResponse, err error) {
	b.outside(func() { response, err = b.real.Get(context.WithoutCancel(ctx), key, options...) })
	return response, err
}

// Delete implements clientv3.KV.
func (b *bubble) Delete(
	ctx context.Context, key string, options ...clientv3.OpOption,
) (response *clientv3.DeleteResponse, err error) {
	b.outside(func() {
		if response, err = b.real.Delete(context.WithoutCancel(ctx), key, options...); err == nil {
			b.await(key, response.Header.Revision)
		}
	})
	return response, err
}

// Compact implements clientv3.KV.
func (b *bubble) Compact(
	ctx context.Context, revision int64, options ...clientv3.CompactOption,
) (response *clientv3.CompactResponse, err error) {
	b.outside(func() { response, err = b.real.Compact(context.WithoutCancel(ctx), revision, options...) })
	return response, err
}

// Do implements clientv3.KV.
func (b *bubble) Do(ctx context.Context, op clientv3.Op) (response clientv3.OpResponse, err error) {
	b.outside(func() { response, err = b.real.Do(context.WithoutCancel(ctx), op) })
	return response, err
}

// Txn implements clientv3.KV.
func (b *bubble) Txn(ctx context.Context) clientv3.Txn { return &bubbleTxn{b: b, ctx: ctx} }

// GetStream implements clientv3.KV like the in-process client of an embedded member, which has no streams.
func (b *bubble) GetStream(context.Context, string, ...clientv3.OpOption) (clientv3.GetStreamChan, error) {
	return nil, status.Error(codes.Unimplemented, "no streams")
}

type bubbleTxn struct {
	b        *bubble
	ctx      context.Context
	cmps     []clientv3.Cmp
	then, or []clientv3.Op
}

// If implements clientv3.Txn.
func (x *bubbleTxn) If(cmps ...clientv3.Cmp) clientv3.Txn { x.cmps = cmps; return x }

// Then implements clientv3.Txn.
func (x *bubbleTxn) Then(ops ...clientv3.Op) clientv3.Txn { x.then = ops; return x }

// Else implements clientv3.Txn.
func (x *bubbleTxn) Else(ops ...clientv3.Op) clientv3.Txn { x.or = ops; return x }

// Commit implements clientv3.Txn.
func (x *bubbleTxn) Commit() (response *clientv3.TxnResponse, err error) {
	x.b.outside(func() {
		ctx, key := context.WithoutCancel(x.ctx), string(x.then[0].KeyBytes())
		if err = x.b.fault(ctx, key); err != nil {
			return
		}
		var previous *clientv3.GetResponse
		if x.b.after != nil {
			if previous, err = x.b.real.Get(ctx, key); err != nil {
				return
			}
		}
		response, err = x.b.real.Txn(ctx).If(x.cmps...).Then(x.then...).Else(x.or...).Commit()
		if err != nil || !response.Succeeded {
			return
		}
		if x.b.after != nil {
			x.b.after(ctx, key, previous)
		}
		x.b.await(key, response.Header.Revision)
	})
	return response, err
}

// bubbleLease grants leases outside of the bubble.
type bubbleLease struct {
	clientv3.Lease
	b *bubble
}

// Grant implements clientv3.Lease.
func (l bubbleLease) Grant(ctx context.Context, ttl int64) (response *clientv3.LeaseGrantResponse, err error) {
	l.b.outside(func() { response, err = l.Lease.Grant(context.WithoutCancel(ctx), ttl) })
	return response, err
}

// Close implements clientv3.Lease. The client outside has another owner.
func (bubbleLease) Close() error { return nil }

// bubbleMaintenance reads the status of etcd outside of the bubble.
type bubbleMaintenance struct {
	clientv3.Maintenance
	b *bubble
}

// Status implements clientv3.Maintenance.
func (m bubbleMaintenance) Status(ctx context.Context, endpoint string) (response *clientv3.StatusResponse, err error) {
	m.b.outside(func() { response, err = m.Maintenance.Status(context.WithoutCancel(ctx), endpoint) })
	return response, err
}

// bubbleWatch is a watch: its responses are received outside, and delivered in the bubble.
type bubbleWatch struct {
	key, end []byte // the watched range; end is nil for one key
	stream   string // the metadata that identify the stream
	wake     chan struct{}
	// queue, revision, progress and ended are guarded by bubble.mu. progress is the number of progress notifications.
	queue    []clientv3.WatchResponse
	revision int64
	progress int
	ended    bool
}

func (w *bubbleWatch) covers(key string) bool {
	if w.end == nil {
		return string(w.key) == key
	}
	return bytes.Compare([]byte(key), w.key) >= 0 && bytes.Compare([]byte(key), w.end) < 0
}

// streamOf returns the outgoing metadata, which identify the stream of a watch.
func streamOf(ctx context.Context) string {
	all, _ := metadata.FromOutgoingContext(ctx)
	for name, values := range all {
		if name == "quorate-feed" {
			return values[0]
		}
	}
	return ""
}

// Watch implements clientv3.Watcher.
func (b *bubble) Watch(ctx context.Context, key string, options ...clientv3.OpOption) clientv3.WatchChan {
	op := clientv3.OpGet(key, options...)
	w := &bubbleWatch{key: op.KeyBytes(), end: op.RangeBytes(), stream: streamOf(ctx), wake: make(chan struct{}, 1)}
	ended, cancel := context.WithCancel(context.WithoutCancel(ctx))
	b.outside(func() {
		arriving := b.real.Watch(ended, key, options...)
		b.mu.Lock()
		b.watches[w] = struct{}{}
		b.mu.Unlock()
		go b.receive(w, arriving)
	})
	passed := make(chan clientv3.WatchResponse)
	go b.pass(ctx, w, cancel, passed)
	return passed
}

// receive runs outside of the bubble.
func (b *bubble) receive(w *bubbleWatch, arriving clientv3.WatchChan) {
	for response := range arriving {
		b.mu.Lock()
		w.queue = append(w.queue, response)
		if n := len(response.Events); n > 0 {
			w.revision = response.Events[n-1].Kv.ModRevision
		} else if response.IsProgressNotify() {
			w.revision = max(w.revision, response.Header.Revision)
			w.progress++
		}
		b.mu.Unlock()
		b.received.Broadcast()
	}
	b.mu.Lock()
	w.ended = true
	delete(b.watches, w)
	b.mu.Unlock()
	b.received.Broadcast()
}

// pass delivers the responses of a watch in the bubble.
func (b *bubble) pass(
	ctx context.Context, w *bubbleWatch, cancel context.CancelFunc, passed chan<- clientv3.WatchResponse,
) {
	defer close(passed)
	defer b.outside(cancel)
	for {
		b.mu.Lock()
		queue, ended := w.queue, w.ended
		w.queue = nil
		b.mu.Unlock()
		for _, response := range queue {
			select {
			case passed <- response:
			case <-ctx.Done():
				return
			}
		}
		if ended {
			return
		}
		select {
		case <-w.wake:
		case <-ctx.Done():
			return
		}
	}
}

// deliver wakes the watches with responses. It must be called in the bubble.
func (b *bubble) deliver() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for w := range b.watches {
		if len(w.queue) > 0 {
			select {
			case w.wake <- struct{}{}:
			default:
			}
		}
	}
}

// patienceOutside bounds the wait for events, in real time.
const patienceOutside = 30 * time.Second

// await waits outside of the bubble until all watches of a key have received a revision.
func (b *bubble) await(key string, revision int64) {
	b.awaitEach(func(w *bubbleWatch) bool { return !w.covers(key) || w.revision >= revision })
}

// awaitEach waits until a condition holds for each watch.
func (b *bubble) awaitEach(holds func(*bubbleWatch) bool) {
	late := false
	timer := time.AfterFunc(patienceOutside, func() {
		b.mu.Lock()
		late = true
		b.mu.Unlock()
		b.received.Broadcast()
	})
	defer timer.Stop()
	b.mu.Lock()
	defer b.mu.Unlock()
	for !late {
		pending := false
		for w := range b.watches {
			pending = pending || !w.ended && !holds(w)
		}
		if !pending {
			return
		}
		b.received.Wait()
	}
	b.t.Error("a watch of etcd has not received what it waits for")
}

// RequestProgress implements clientv3.Watcher. When it returns, the watch has received the notification.
func (b *bubble) RequestProgress(ctx context.Context) (err error) {
	stream := streamOf(ctx)
	b.outside(func() {
		before := map[*bubbleWatch]int{}
		b.mu.Lock()
		for w := range b.watches {
			before[w] = w.progress
		}
		b.mu.Unlock()
		if err = b.real.RequestProgress(context.WithoutCancel(ctx)); err != nil {
			return
		}
		b.awaitEach(func(w *bubbleWatch) bool {
			count, known := before[w]
			return w.stream != stream || !known || w.progress > count
		})
	})
	return err
}

// Close implements clientv3.Watcher. The client outside has another owner.
func (*bubble) Close() error { return nil }
