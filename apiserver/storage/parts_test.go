package storage

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/util/wait"
	testclock "k8s.io/utils/clock/testing"

	"quorate.dev/apiserver/etcd/etcdtest"
)

func TestLeaseFits(t *testing.T) {
	granted := time.Unix(1000, 0)
	l := lease{expires: granted.Add((3600 + 60) * time.Second)} // of an object with a TTL of an hour, reused for 60 s
	for _, test := range []struct {
		name  string
		after time.Duration
		ttl   int64
		used  int
		want  bool
	}{
		{"at once", 0, 3600, 1, true},
		{"at the end of its reuse", 60 * time.Second, 3600, 1, true},
		{"too late", 61 * time.Second, 3600, 1, false},
		{"full", 0, 3600, leaseMaxObjects, false},
		{"shorter life", 0, 600, 1, false},
		{"longer life", 0, 7200, 1, false},
	} {
		l.objects = test.used
		if got := l.fits(granted.Add(test.after), test.ttl, 60); got != test.want {
			t.Errorf("%s: %v", test.name, got)
		}
	}
	shared := &leases{maxReuse: leaseMaxReuse}
	for ttl, want := range map[int64]int64{10: 0, 100: 5, 1200: 60, 3600: 60} {
		if got := shared.reuseSeconds(ttl); got != want {
			t.Errorf("a lease for %d s is reused for %d s, want %d", ttl, got, want)
		}
	}
}

// grants is a leaseGranter that counts leases.
type grants struct{ count int64 }

func (g *grants) Grant(context.Context, int64) (*clientv3.LeaseGrantResponse, error) {
	g.count++
	return &clientv3.LeaseGrantResponse{ID: clientv3.LeaseID(g.count)}, nil
}

func TestLeasesAreShared(t *testing.T) {
	g := &grants{}
	clock := testclock.NewFakePassiveClock(time.Unix(1000, 0))
	l := &leases{granter: g, clock: clock, maxReuse: leaseMaxReuse}
	get := func() clientv3.LeaseID {
		id, err := l.get(t.Context(), 3600)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	for range leaseMaxObjects {
		if id := get(); id != 1 {
			t.Fatalf("lease %d", id)
		}
	}
	if id := get(); id != 2 {
		t.Errorf("a full lease was used again: %d", id)
	}
	clock.SetTime(clock.Now().Add(2 * time.Minute))
	if id := get(); id != 3 {
		t.Errorf("an old lease was used again: %d", id)
	}
	l.maxReuse = 0
	if first, second := get(), get(); first != 4 || second != 5 {
		t.Errorf("without sharing: got the leases %d and %d", first, second)
	}
}

// Callers share a read of the revision that is sent after all of their calls.
func TestRevisionIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers := make(chan int64)
		asked := 0
		s := &Store{}
		s.revisions.read = func(context.Context) (int64, error) {
			asked++
			return <-answers, nil
		}
		got := make([]int64, 4)
		var callers sync.WaitGroup
		call := func(i int) {
			callers.Go(func() { got[i], _ = s.Revision(t.Context()) })
			synctest.Wait()
		}
		call(0)
		call(1) // while the read of the first call is in flight
		call(2)
		answers <- 7
		synctest.Wait()
		call(3)
		answers <- 8
		synctest.Wait()
		answers <- 9
		callers.Wait()
		if want := []int64{7, 8, 8, 9}; fmt.Sprint(got) != fmt.Sprint(want) || asked != 3 {
			t.Errorf("got %v after %d reads, want %v after 3", got, asked, want)
		}
	})
}

func TestRevisionEndsWithCaller(t *testing.T) {
	s := &Store{}
	release := make(chan struct{})
	s.revisions.read = func(context.Context) (int64, error) { <-release; return 1, nil }
	defer close(release)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Revision(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestPrefix(t *testing.T) {
	client := etcdtest.Client(t)
	for prefix, want := range map[string]string{
		"/registry": "/registry/pods/a", "registry": "/registry/pods/a", "/registry/": "/registry/pods/a",
		"//a///b/": "/a/b/pods/a", "a/../b": "/b/pods/a", "": "/pods/a", "/": "/pods/a", ".": "/pods/a",
	} {
		s := New(client, prefix)
		if got := s.Key("pods/a"); got != want {
			t.Errorf("%q: %s, want %s", prefix, got, want)
		}
		revision, err := s.Create(t.Context(), "pods/a", []byte(prefix), 0)
		if err != nil {
			t.Fatal(err)
		}
		if page, err := s.List(t.Context(), "pods/", ListOptions{}); err != nil || len(page.Values) != 1 ||
			page.Values[0].Path != "pods/a" {
			t.Errorf("%q: %+v, %v", prefix, page, err)
		}
		if _, err := s.Delete(t.Context(), "pods/a", revision); err != nil {
			t.Fatal(err)
		}
	}
}

func TestClassify(t *testing.T) {
	for _, test := range []struct{ err, want error }{
		{rpctypes.ErrCompacted, ErrCompacted},
		{rpctypes.ErrGRPCCompacted, ErrCompacted},
		{rpctypes.ErrFutureRev, ErrFuture},
		{rpctypes.ErrNoLeader, ErrUnavailable},
		{rpctypes.ErrGRPCTimeout, ErrUnavailable},
		{rpctypes.ErrRequestTooLarge, ErrTooLarge},
		{status.Error(codes.ResourceExhausted, "trying to send message larger than max (2097153 vs. 2097152)"), ErrTooLarge},
		{rpctypes.ErrNoSpace, ErrNoSpace},
		{context.Canceled, context.Canceled},
	} {
		if got := classify(test.err); !errors.Is(got, test.want) {
			t.Errorf("%v became %v, want %v", test.err, got, test.want)
		}
	}
	if got := classify(context.Canceled); errors.Is(got, ErrUnavailable) {
		t.Error("the cancellation of the caller's context is classified as unavailable")
	}
}

func TestCompactionRounds(t *testing.T) {
	client := etcdtest.Client(t)
	s, other := New(client, "/registry"), New(client, "/registry")
	ctx := t.Context()
	step := func(s *Store, last round) round {
		t.Helper()
		next, err := s.compactRound(ctx, last)
		if err != nil {
			t.Fatal(err)
		}
		return next
	}
	compacted := func() int64 {
		response, err := client.Get(ctx, compactionKey)
		if err != nil {
			t.Fatal(err)
		}
		revision, _ := strconv.ParseInt(string(response.Kvs[0].Value), 10, 64)
		return revision
	}
	mine := step(s, round{})       // claims the first round, compacts nothing
	theirs := step(other, round{}) // observes the claim
	if mine.version != 1 || theirs.version != 1 || compacted() != 0 {
		t.Fatalf("first round: %+v, %+v, compacted %d", mine, theirs, compacted())
	}
	first, err := s.Create(ctx, "a", []byte("1"), 0)
	if err != nil {
		t.Fatal(err)
	}
	theirs2 := step(other, theirs) // claims the second round
	if theirs2.version != 2 || compacted() != theirs.revision {
		t.Errorf("second round: %+v, compacted to %d, want %d", theirs2, compacted(), theirs.revision)
	}
	if mine = step(s, mine); mine.version != 2 || compacted() != theirs.revision {
		t.Errorf("the server without the claim compacted too: %+v, %d", mine, compacted())
	}
	if mine = step(s, mine); compacted() < first {
		t.Errorf("third round: %+v, compacted to %d, before %d", mine, compacted(), first)
	}
	if _, err := s.List(ctx, "", ListOptions{Revision: theirs.revision}); !errors.Is(err, ErrCompacted) {
		t.Errorf("a compacted revision is readable: %v", err)
	}
}

// eventually waits until a condition holds, for which there is no notification.
func eventually(t *testing.T, holds func() bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, time.Minute, true, func(
		context.Context,
	) (bool, error) {
		return holds(), nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestRunCompaction(t *testing.T) {
	client := etcdtest.Client(t)
	s := New(client, "/registry")
	clock := testclock.NewFakeClock(time.Unix(0, 0))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { s.RunCompaction(ctx, time.Minute, nil, clock, logr.Discard()); close(ended) }()
	watch := client.Watch(ctx, compactionKey, clientv3.WithRev(1))
	eventually(t, clock.HasWaiters)
	for round := range 2 {
		clock.Step(time.Minute)
		if got := <-watch; got.Events[0].Kv.Version != int64(round+1) {
			t.Fatalf("round %d: %v", round, got.Events)
		}
	}
	cancel()
	<-ended
	s.RunCompaction(t.Context(), 0, nil, clock, logr.Discard()) // returns
}
