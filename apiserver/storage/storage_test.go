package storage_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/etcd/etcdtest"
	"quorate.dev/apiserver/storage"
)

// eachClient runs a test with the in-process client of an etcd, and with a client that connects to another etcd.
func eachClient(t *testing.T, test func(*testing.T, *clientv3.Client)) {
	t.Run("local", func(t *testing.T) { test(t, etcdtest.Client(t)) })
	t.Run("remote", func(t *testing.T) { test(t, etcdtest.Remote(t)) })
}

func must[T any](t testing.TB) func(T, error) T {
	return func(value T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

func TestWritesAreConditional(t *testing.T) { eachClient(t, testWritesAreConditional) }

func testWritesAreConditional(t *testing.T, client *clientv3.Client) {
	ctx := t.Context()
	s := storage.New(client, "/registry")
	created := must[int64](t)(s.Create(ctx, "pods/default/a", []byte("one"), 0))
	if _, err := s.Create(ctx, "pods/default/a", []byte("two"), 0); !errors.Is(err, storage.ErrExists) {
		t.Errorf("creating again: %v", err)
	}
	updated := must[int64](t)(s.Update(ctx, "pods/default/a", created, []byte("two"), 0))
	var conflict *storage.ConflictError
	_, err := s.Update(ctx, "pods/default/a", created, []byte("three"), 0)
	if !errors.As(err, &conflict) || !conflict.Found || string(conflict.Current.Data) != "two" ||
		conflict.Current.Revision != updated {
		t.Errorf("updating from an old revision: %v, %+v", err, conflict)
	}
	if _, err := s.Delete(ctx, "pods/default/a", created); !errors.As(err, &conflict) {
		t.Errorf("deleting at an old revision: %v", err)
	}
	got := must[storage.Value](t)(s.Get(ctx, "pods/default/a"))
	if got.Created != created || got.Revision != updated || got.Path != "pods/default/a" {
		t.Errorf("got %+v", got)
	}
	deleted := must[int64](t)(s.Delete(ctx, "pods/default/a", updated))
	if deleted <= updated {
		t.Errorf("deleted at %d, updated at %d", deleted, updated)
	}
	if _, err := s.Get(ctx, "pods/default/a"); !errors.Is(err, storage.ErrNotFound) {
		t.Errorf("getting what was deleted: %v", err)
	}
	if _, err := s.Update(ctx, "pods/default/a", updated, nil, 0); !errors.As(err, &conflict) || conflict.Found {
		t.Errorf("updating what was deleted: %v", err)
	}
}

func TestListPages(t *testing.T) { eachClient(t, testListPages) }

func testListPages(t *testing.T, client *clientv3.Client) {
	ctx := t.Context()
	s := storage.New(client, "registry/")
	var last int64
	for i := range 5 {
		last = must[int64](t)(s.Create(ctx, fmt.Sprintf("pods/ns/%d", i), []byte("x"), 0))
	}
	must[int64](t)(s.Create(ctx, "podsx/ns/other", []byte("x"), 0))
	page := must[storage.Page](t)(s.List(ctx, "pods/", storage.ListOptions{Revision: last, Limit: 2}))
	if len(page.Values) != 2 || !page.More || page.Remaining != 3 || page.Revision != last {
		t.Errorf("first page: %+v", page)
	}
	must[int64](t)(s.Delete(ctx, "pods/ns/2", must[storage.Value](t)(s.Get(ctx, "pods/ns/2")).Revision))
	page = must[storage.Page](t)(s.List(ctx, "pods/", storage.ListOptions{Revision: last, Limit: 9, From: "pods/ns/2"}))
	if len(page.Values) != 3 || page.More || page.Remaining != 0 || page.Values[0].Path != "pods/ns/2" {
		t.Errorf("second page, as of the first: %+v", page)
	}
	now := must[storage.Page](t)(s.List(ctx, "pods/", storage.ListOptions{}))
	if len(now.Values) != 4 || now.Revision <= last {
		t.Errorf("now: %+v", now)
	}
	if got := must[*clientv3.GetResponse](t)(client.Get(ctx, "/registry/pods/ns/0")); len(got.Kvs) != 1 {
		t.Error("the key is not where kube-apiserver looks for it")
	}
	if _, err := s.List(
		ctx, "pods/", storage.ListOptions{Revision: now.Revision + 100},
	); !errors.Is(err, storage.ErrFuture) {
		t.Errorf("in the future: %v", err)
	}
	if err := s.Compact(ctx, now.Revision); err != nil {
		t.Fatal(err)
	}
	if err := s.Compact(ctx, now.Revision); err != nil {
		t.Errorf("compacting again: %v", err)
	}
	if _, err := s.List(ctx, "pods/", storage.ListOptions{Revision: last}); !errors.Is(err, storage.ErrCompacted) {
		t.Errorf("compacted: %v", err)
	}
	if size := must[storage.Space](t)(s.Space(ctx)); size.Size <= 0 || size.InUse > size.Size ||
		size.Quota < size.Size || size.NoSpace {
		t.Errorf("%+v", size)
	}
}

// next collects events until it has as many as wanted.
func next(t *testing.T, feed *storage.WatchStream, want int) []storage.Event {
	t.Helper()
	var events []storage.Event
	for len(events) < want {
		batch, err := feed.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		events = append(events, batch.Events...)
	}
	return events
}

func TestWatchOrder(t *testing.T) { eachClient(t, testWatchOrder) }

func testWatchOrder(t *testing.T, client *clientv3.Client) {
	ctx := t.Context()
	s := storage.New(client, "/registry")
	start := must[int64](t)(s.Revision(ctx))
	created := must[int64](t)(s.Create(ctx, "pods/a", []byte("one"), 0))
	updated := must[int64](t)(s.Update(ctx, "pods/a", created, nil, 0))
	deleted := must[int64](t)(s.Delete(ctx, "pods/a", updated))
	feed := must[*storage.WatchStream](t)(s.Watch(ctx, start))
	events := next(t, feed, 3)
	if e := events[0]; e.Path != "pods/a" || string(e.Data) != "one" || e.Revision != created || e.Created != created {
		t.Errorf("creation: %+v", e)
	}
	if e := events[1]; e.Data == nil || e.Revision != updated || e.Created != created {
		t.Errorf("update to nothing must not look like a deletion: %+v", e)
	}
	if e := events[2]; e.Data != nil || e.Revision != deleted {
		t.Errorf("deletion: %+v", e)
	}
	history := must[*storage.WatchStream](t)(s.History(ctx, "pods/", start))
	if e := next(t, history, 3)[1]; string(e.Previous) != "one" || e.Replaced != created {
		t.Errorf("history: %+v", e)
	}

	outside := must[*clientv3.PutResponse](t)(client.Put(ctx, "elsewhere", "")).Header.Revision
	batch := storage.Batch{}
	for batch.Revision < outside { // etcd answers no request before it has synchronized the watch
		if err := feed.RequestProgress(); err != nil {
			t.Fatal(err)
		}
		limited, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		if got, err := feed.Next(limited); err == nil {
			batch = got
		}
		cancel()
	}
	if len(batch.Events) != 0 {
		t.Errorf("progress came with events: %+v", batch)
	}
}

func TestFeedEnds(t *testing.T) { eachClient(t, testFeedEnds) }

func testFeedEnds(t *testing.T, client *clientv3.Client) {
	ctx := t.Context()
	s := storage.New(client, "/registry")
	first := must[int64](t)(s.Create(ctx, "pods/a", nil, 0))
	second := must[int64](t)(s.Create(ctx, "pods/b", nil, 0))
	if err := s.Compact(ctx, second); err != nil {
		t.Fatal(err)
	}
	feed := must[*storage.WatchStream](t)(s.Watch(ctx, first-1))
	if _, err := feed.Next(ctx); !errors.Is(err, storage.ErrCompacted) {
		t.Errorf("watching what is compacted: %v", err)
	}
	if err := feed.RequestProgress(); !errors.Is(err, storage.ErrCompacted) {
		t.Errorf("requesting progress after the end: %v", err)
	}
	feed = must[*storage.WatchStream](t)(s.Watch(ctx, second))
	feed.Close()
	if _, err := feed.Next(ctx); !errors.Is(err, storage.ErrUnavailable) {
		t.Errorf("after Close: %v", err)
	}
}

func TestExpiryIsOneBatch(t *testing.T) { eachClient(t, testExpiryIsOneBatch) }

func testExpiryIsOneBatch(t *testing.T, client *clientv3.Client) {
	ctx := t.Context()
	s := storage.New(client, "/registry")
	var last int64
	for i := range 20 {
		last = must[int64](t)(s.Create(ctx, fmt.Sprintf("events/ns/%d", i), []byte("e"), time.Hour))
	}
	leases := must[*clientv3.LeaseLeasesResponse](t)(client.Leases(ctx)).Leases
	if len(leases) != 1 {
		t.Fatalf("20 objects have %d leases", len(leases))
	}
	feed := must[*storage.WatchStream](t)(s.Watch(ctx, last))
	must[*clientv3.LeaseRevokeResponse](t)(client.Revoke(ctx, leases[0].ID))
	batch, err := feed.Next(ctx)
	if err != nil || len(batch.Events) != 20 || batch.Events[0].Revision != batch.Events[19].Revision {
		t.Errorf("all deletions of one revision must come together: %+v, %v", batch, err)
	}
}

func TestFollowCompaction(t *testing.T) { eachClient(t, testFollowCompaction) }

func testFollowCompaction(t *testing.T, client *clientv3.Client) {
	s := storage.New(client, "/registry")
	must := must[*clientv3.PutResponse](t)
	must(client.Put(t.Context(), "compact_rev_key", "12"))
	ctx, cancel := context.WithCancel(t.Context())
	compacted, ended := make(chan int64, 10), make(chan struct{})
	go func() {
		defer close(ended)
		s.FollowCompaction(ctx, clock.RealClock{}, logr.Discard(), func(revision int64) { compacted <- revision })
	}()
	if got := <-compacted; got != 12 {
		t.Errorf("at first: %d", got)
	}
	for _, value := range []string{"0", "no number", "34"} {
		must(client.Put(t.Context(), "compact_rev_key", value))
	}
	if got := <-compacted; got != 34 {
		t.Errorf("then: %d", got)
	}
	cancel()
	<-ended
}

// changingLeader fails one read with the error of a change of the leader.
type changingLeader struct {
	clientv3.KV
	fails bool
}

func (c *changingLeader) Get(
	ctx context.Context, key string, options ...clientv3.OpOption,
) (*clientv3.GetResponse, error) {
	if c.fails {
		c.fails = false
		return nil, rpctypes.ErrGRPCLeaderChanged
	}
	return c.KV.Get(ctx, key, options...)
}

func TestReadsAreRepeatedAfterALeaderChange(t *testing.T) {
	ctx, client := t.Context(), etcdtest.Client(t)
	leader := &changingLeader{KV: client.KV}
	client.KV = leader
	s := storage.New(client, "/registry")
	revision := must[int64](t)(s.Create(ctx, "pods/a", []byte("a"), 0))
	for _, read := range []struct {
		name string
		run  func() error
	}{
		{"Revision", func() error { _, err := s.Revision(ctx); return err }},
		{"Get", func() error { _, err := s.Get(ctx, "pods/a"); return err }},
		{"List", func() error { _, err := s.List(ctx, "pods/", storage.ListOptions{}); return err }},
		{"ListKeys", func() error { _, err := s.ListKeys(ctx, "pods/", storage.ListOptions{}); return err }},
		{"Count", func() error { _, err := s.Count(ctx, "pods/", "", revision); return err }},
	} {
		leader.fails = true
		if err := read.run(); err != nil || leader.fails {
			t.Errorf("%s: %v", read.name, err)
		}
	}
}

func TestReadsEndWithTheirContextDuringALeaderChange(t *testing.T) {
	client := etcdtest.Client(t)
	ctx, cancel := context.WithCancel(t.Context())
	client.KV = leaderless{KV: client.KV, read: cancel}
	if _, err := storage.New(client, "/registry").Get(ctx, "pods/a"); !errors.Is(err, storage.ErrUnavailable) {
		t.Errorf("got %v, want %v", err, storage.ErrUnavailable)
	}
}

// leaderless fails all reads with the error of a change of the leader.
type leaderless struct {
	clientv3.KV
	read func() // called by each read
}

func (l leaderless) Get(context.Context, string, ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	l.read()
	return nil, rpctypes.ErrGRPCLeaderChanged
}

// TestDeleteUnreadable deletes a value at its revision only.
func TestDeleteUnreadable(t *testing.T) {
	ctx, client := t.Context(), etcdtest.Client(t)
	s := storage.New(client, "/registry")
	revision := must[int64](t)(s.Create(ctx, "pods/a", []byte("nonsense"), 0))
	for _, step := range []struct {
		name     string
		revision int64
		want     bool
	}{
		{"at an earlier revision", revision - 1, false}, {"at its revision", revision, true}, {"again", revision, false},
	} {
		if deleted, err := s.DeleteUnreadable(ctx, "pods/a", step.revision); err != nil || deleted != step.want {
			t.Errorf("%s: deleted is %v, want %v; %v", step.name, deleted, step.want, err)
		}
	}
}
