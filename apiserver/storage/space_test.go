package storage

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/utils/clock"
	testclock "k8s.io/utils/clock/testing"

	"quorate.dev/apiserver/etcd/etcdtest"
)

func TestSoftQuota(t *testing.T) {
	const quota = 1 << 30
	for name, test := range map[string]struct {
		space         Space
		percent       int64
		before, after int
		want          string // empty: admitted
	}{
		"room": {Space{Size: 800 << 20, InUse: 700 << 20, Quota: quota}, 90, 0, 1 << 20, ""},
		"no room": {Space{Size: 950 << 20, InUse: 930 << 20, Quota: quota}, 90, 0, 1,
			"930.0 MiB of the quota of 1024.0 MiB are in use"},
		"no room for this":          {Space{Size: 950 << 20, InUse: 921 << 20, Quota: quota}, 90, 0, 1 << 20, "in use"},
		"an object that grows":      {Space{Size: 950 << 20, InUse: 930 << 20, Quota: quota}, 90, 1000, 1001, "in use"},
		"an object that does not":   {Space{Size: 950 << 20, InUse: 930 << 20, Quota: quota}, 90, 1000, 1000, ""},
		"an object that shrinks":    {Space{Size: 950 << 20, InUse: 930 << 20, Quota: quota}, 90, 1000, 999, ""},
		"a file of fragments":       {Space{Size: 1023 << 20, InUse: 100 << 20, Quota: quota}, 90, 0, 1 << 20, "defragment"},
		"small data in such a file": {Space{Size: 1023 << 20, InUse: 100 << 20, Quota: quota}, 90, 0, 1 << 10, ""},
		"an unknown quota":          {Space{Size: 950 << 20, InUse: 930 << 20}, 90, 0, 1, ""},
		"etcd's own limit":          {Space{Size: 1023 << 20, InUse: 1023 << 20, Quota: quota}, 100, 0, 1 << 20, ""},
		"a full file system": {Space{Quota: quota, DiskFree: 50 << 20, DiskReserve: 51 << 20}, 100, 0, 1,
			"the file system of etcd has 50.0 MiB left, and needs 51.0 MiB"},
		"room in the file system":    {Space{Quota: quota, DiskFree: 60 << 20, DiskReserve: 51 << 20}, 90, 0, 1 << 20, ""},
		"another share of the quota": {Space{Size: 600 << 20, InUse: 600 << 20, Quota: quota}, 50, 0, 1, "in use"},
	} {
		t.Run(name, func(t *testing.T) {
			q := &SoftQuota{Measure: func() Space { return test.space }, Percent: test.percent}
			err := q.Admit(test.before, test.after)
			refused := test.want != ""
			if refused != (err != nil) || refused && (!errors.Is(err, ErrNoSpace) || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("got %v, want %q", err, test.want)
			}
			if refused && !q.Exceeded() {
				t.Error("data was refused, but the quota is not exceeded")
			}
			test.space = Space{Quota: quota}
			if q.Exceeded() {
				t.Error("there is free space, but the quota is exceeded")
			}
			test.space.NoSpace = true
			if !q.Exceeded() {
				t.Error("the NOSPACE alarm is raised, but the quota is not exceeded")
			}
		})
	}
	var none *SoftQuota
	if none.Admit(0, 1<<30) != nil || none.Exceeded() {
		t.Error("a nil quota refuses a write")
	}
}

// full returns a store whose etcd has reached its quota.
func full(t *testing.T) (*Store, *clientv3.Client) {
	t.Helper()
	flags := etcdtest.Flags(t)
	flags.QuotaBackendBytes = 8 << 20
	client := etcdtest.Start(t, flags).Client()
	s := New(client, "/registry")
	data := []byte(strings.Repeat("x", 100<<10))
	for i := range 1000 {
		if _, err := s.Create(t.Context(), fmt.Sprint("pods/", i), data, 0); errors.Is(err, ErrNoSpace) {
			return s, client
		} else if err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("the quota is not reached")
	return nil, nil
}

// Compaction works while etcd refuses to write the compaction key for lack of space. Without it, deletions would not
// free space.
func TestCompactionWithoutSpace(t *testing.T) {
	s, client := full(t)
	if _, err := s.Create(t.Context(), "events/a", []byte("x"), time.Hour); !errors.Is(err, ErrNoSpace) {
		t.Errorf("creating with a lease: %v", err)
	}
	space, err := s.Space(t.Context())
	if err != nil || !space.NoSpace || space.Quota != 8<<20 {
		t.Errorf("%+v, %v", space, err)
	}
	first, err := s.compactRound(t.Context(), round{})
	if err != nil || first.revision == 0 {
		t.Fatalf("the first round: %+v, %v", first, err)
	}
	deleted, err := client.Delete(t.Context(), s.Key("pods/"), clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	second, err := s.compactRound(t.Context(), first)
	if err != nil || second.revision != deleted.Header.Revision {
		t.Fatalf("the second round: %+v, %v, deleted at %d", second, err, deleted.Header.Revision)
	}
	if _, err := s.compactRound(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	if _, err := s.List(t.Context(), "pods/", ListOptions{Revision: first.revision}); !errors.Is(err, ErrCompacted) {
		t.Errorf("a deleted key is readable: %v", err)
	}
}

// While the soft quota is exceeded, compaction runs at a shorter interval.
func TestCompactionWhileTheSoftQuotaIsExceeded(t *testing.T) {
	client := etcdtest.Client(t)
	s := New(client, "/registry")
	exceeded := false
	quota := &SoftQuota{Percent: 90, Measure: func() Space {
		if exceeded {
			return Space{Quota: 100, InUse: 100}
		}
		return Space{Quota: 100}
	}}
	created, err := s.Create(t.Context(), "pods/a", []byte("x"), 0)
	if err != nil {
		t.Fatal(err)
	}
	last, err := s.compactWhileFull(t.Context(), quota, 0)
	if err != nil || last != 0 {
		t.Fatalf("with room: %d, %v", last, err)
	}
	exceeded = true
	if last, err = s.compactWhileFull(t.Context(), quota, last); err != nil || last != created {
		t.Fatalf("at the first tick: %d, %v", last, err)
	}
	if _, err := s.Delete(t.Context(), "pods/a", created); err != nil {
		t.Fatal(err)
	}
	deleted, err := s.compactWhileFull(t.Context(), quota, last)
	if err != nil || deleted <= created {
		t.Fatalf("at the second tick: %d, %v", deleted, err)
	}
	if _, err = s.compactWhileFull(t.Context(), quota, deleted); err != nil {
		t.Fatal(err)
	}
	if _, err := s.List(t.Context(), "pods/", ListOptions{Revision: created}); !errors.Is(err, ErrCompacted) {
		t.Errorf("a deleted key is readable: %v", err)
	}
}

// The usage of a remote etcd is polled.
func TestPollSpace(t *testing.T) {
	s := New(etcdtest.Remote(t), "/registry")
	ctx, cancel := context.WithCancel(t.Context())
	found := make(chan Space)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.PollSpace(ctx, time.Millisecond, clock.RealClock{}, func(space Space) {
			select {
			case found <- space:
			case <-ctx.Done():
			}
		})
	}()
	for range 2 {
		if space := <-found; space.Size <= 0 || space.InUse > space.Size || space.Quota != 2<<30 {
			t.Errorf("%+v", space)
		}
	}
	cancel()
	<-ended
}

// RunCompaction checks the soft quota at its own, shorter interval.
func TestRunCompactionWhileFull(t *testing.T) {
	client := etcdtest.Client(t)
	s := New(client, "/registry")
	revision, err := s.Create(t.Context(), "pods/a", []byte("x"), 0)
	if err != nil {
		t.Fatal(err)
	}
	measured := make(chan struct{}, 1)
	quota := &SoftQuota{Percent: 90, Measure: func() Space {
		select {
		case measured <- struct{}{}:
		default:
		}
		return Space{NoSpace: true}
	}}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	clock := testclock.NewFakeClock(time.Unix(0, 0))
	go func() { s.RunCompaction(ctx, time.Hour, quota, clock, logr.Discard()); close(ended) }()
	eventually(t, clock.HasWaiters)
	for ; !errors.Is(err, ErrCompacted); _, err = s.List(t.Context(), "pods/", ListOptions{Revision: revision}) {
		if _, err := s.Create(t.Context(), fmt.Sprint("pods/", clock.Now().Unix()), []byte("x"), 0); err != nil {
			t.Fatal(err)
		}
		clock.Step(fullInterval)
		<-measured
		if clock.Since(time.Unix(0, 0)) > 30*time.Minute {
			t.Fatal("no compaction within half of the configured interval")
		}
	}
	cancel()
	<-ended
}
