package storage_test

import (
	"context"
	"runtime"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"quorate.dev/apiserver/etcd/etcdtest"
	"quorate.dev/apiserver/storage"
)

// etcd may confirm a new watch before it sends an older progress notification. A new WatchStream must not take the
// revision of that notification for its own.
func TestProgressOfOtherStreams(t *testing.T) {
	for _, test := range []struct {
		name string
		open func(*storage.Store, context.Context, int64) (*storage.WatchStream, error)
	}{
		{"history", func(s *storage.Store, ctx context.Context, after int64) (*storage.WatchStream, error) {
			return s.History(ctx, "pods/", after)
		}},
		{"everything", (*storage.Store).Watch},
	} {
		t.Run(test.name, func(t *testing.T) {
			ctx, client := t.Context(), etcdtest.Remote(t)
			late := &lateProgress{WatchClient: pb.NewWatchClient(client.ActiveConnection()), held: make(chan struct{}, 1)}
			client.Watcher = clientv3.NewWatchFromWatchClient(late, client)
			s := storage.New(client, "/registry")
			start := must[int64](t)(s.Revision(ctx))
			first := must[*storage.WatchStream](t)(s.Watch(ctx, start))
			created := must[int64](t)(s.Create(ctx, "pods/a", []byte("one"), 0))
			next(t, first, 1)
			late.await(t, first)

			second := must[*storage.WatchStream](t)(test.open(s, ctx, start))
			batch, err := second.Next(ctx)
			if err != nil || len(batch.Events) != 1 || batch.Revision != created {
				t.Errorf("the first batch is %+v, %v; want the event of revision %d", batch, err, created)
			}
		})
	}
}

// lateProgress delays progress notifications as long as etcd may: until the next watch on their gRPC stream is
// confirmed.
type lateProgress struct {
	pb.WatchClient
	held chan struct{} // capacity 1; has a value if a notification is delayed
}

// await returns once a progress notification is delayed. etcd sends none before the watch is synchronized.
func (l *lateProgress) await(t *testing.T, feed *storage.WatchStream) {
	t.Helper()
	for {
		if err := feed.RequestProgress(); err != nil {
			t.Fatal(err)
		}
		select {
		case <-l.held:
			return
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (l *lateProgress) Watch(ctx context.Context, options ...grpc.CallOption) (pb.Watch_WatchClient, error) {
	stream, err := l.WatchClient.Watch(ctx, options...)
	return &lateStream{Watch_WatchClient: stream, held: l.held}, err
}

type lateStream struct {
	pb.Watch_WatchClient
	held      chan struct{}
	answer    *pb.WatchResponse // the delayed notification
	announced bool
}

func (l *lateStream) Recv() (*pb.WatchResponse, error) {
	if answer := l.answer; l.announced && answer != nil {
		l.answer = nil
		return answer, nil
	}
	for {
		response, err := l.Watch_WatchClient.Recv()
		if err != nil || response.Created || response.WatchId != clientv3.InvalidWatchID {
			l.announced = err == nil && response.Created
			return response, err
		}
		l.answer = response
		select {
		case l.held <- struct{}{}:
		default:
		}
	}
}

// The gRPC stream of a WatchStream ends with the WatchStream, and a late progress request opens no other gRPC stream.
func TestClosedStreamsLeakNothing(t *testing.T) { eachClient(t, testClosedStreamsLeakNothing) }

func testClosedStreamsLeakNothing(t *testing.T, client *clientv3.Client) {
	ctx := t.Context()
	s := storage.New(client, "/registry")
	start := must[int64](t)(s.Revision(ctx))
	must[int64](t)(s.Create(ctx, "pods/a", []byte("one"), 0))
	open := func() {
		feed := must[*storage.WatchStream](t)(s.History(ctx, "pods/", start))
		next(t, feed, 1)
		feed.Close()
		if err := feed.RequestProgress(); err == nil {
			t.Error("a closed stream accepts a progress request")
		}
	}
	open()
	const feeds = 20
	before := runtime.NumGoroutine()
	for range feeds {
		open()
	}
	for deadline := time.Now().Add(20 * time.Second); runtime.NumGoroutine() >= before+feeds; {
		if time.Now().After(deadline) {
			t.Fatalf("%d goroutines before %d streams, %d after them", before, feeds, runtime.NumGoroutine())
		}
		runtime.Gosched()
	}
}
