package storage

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	clock "k8s.io/utils/clock/testing"

	"quorate.dev/apiserver/etcd/etcdtest"
)

func TestProgressIsRight(t *testing.T) {
	for version, want := range map[string]bool{
		"3.3.25": false, "3.4.30": false, "3.4.31": true, "3.4.40": true, "3.5.0": false, "3.5.12": false,
		"3.5.13": true, "3.6.0": true, "3.7.3": true, "4.0.0": true, "": false, "latest": false,
	} {
		if got := supportsProgress(version); got != want {
			t.Errorf("%s: %v", version, got)
		}
	}
}

// versions is a maintenance client of members with different versions. A member with an empty version is unavailable.
type versions struct {
	clientv3.Maintenance
	of    map[string]string
	asked atomic.Int32
}

func (v *versions) Status(_ context.Context, endpoint string) (*clientv3.StatusResponse, error) {
	v.asked.Add(1)
	if v.of[endpoint] == "" {
		return nil, errors.New("no answer")
	}
	return &clientv3.StatusResponse{Header: &etcdserverpb.ResponseHeader{ClusterId: 1}, Version: v.of[endpoint]}, nil
}

func TestCheckFeatures(t *testing.T) {
	embedded := New(etcdtest.Client(t), "/registry")
	if <-embedded.FeaturesKnown(); !embedded.SupportsProgress() {
		t.Error("the embedded etcd does not support progress requests")
	}
	real := New(etcdtest.Remote(t), "/registry")
	if real.SupportsProgress() {
		t.Error("a remote etcd supports progress requests before its version is known")
	}
	if real.CheckFeatures(t.Context(), clock.NewFakeClock(time.Now()), logr.Discard()); !real.SupportsProgress() {
		t.Error("a real etcd does not support progress requests")
	}
	for name, test := range map[string]struct {
		of   map[string]string
		want bool
	}{
		"new":            {map[string]string{"a": "3.6.1", "b": "3.5.13"}, true},
		"one old member": {map[string]string{"a": "3.6.1", "b": "3.5.12"}, false},
		"one is away":    {map[string]string{"a": "3.6.1", "b": ""}, true},
		"all are away":   {map[string]string{"a": "", "b": ""}, false},
	} {
		t.Run(name, func(t *testing.T) {
			client, err := clientv3.New(clientv3.Config{Endpoints: []string{"a", "b"}, Logger: zap.NewNop()})
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			members := &versions{of: test.of}
			client.Maintenance = members
			s := New(client, "/registry")
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() { s.CheckFeatures(ctx, clock.NewFakeClock(time.Now()), logr.Discard()); close(ended) }()
			// CheckFeatures does not end while a member is unavailable.
			eventually(t, func() bool { return members.asked.Load() >= 2 && s.SupportsProgress() == test.want })
			cancel()
			<-ended
			if got := s.SupportsProgress(); got != test.want {
				t.Errorf("supported: %v", got)
			}
		})
	}
}

// shim is an etcd whose responses have no ID of the cluster, and which lacks some features.
type shim struct {
	clientv3.Maintenance
	clientv3.Watcher
	clientv3.Lease
	clientv3.KV
	lacks   map[string]bool
	deleted atomic.Bool // a transaction with a deletion was committed
}

var errLacking = status.Error(codes.Unknown, "it is not supported")

func (s *shim) Status(ctx context.Context, endpoint string) (*clientv3.StatusResponse, error) {
	response, err := s.Maintenance.Status(ctx, endpoint)
	if err == nil {
		response.Header.ClusterId = 0
	}
	return response, err
}

func (s *shim) RequestProgress(ctx context.Context) error {
	if s.lacks["progress"] || s.lacks["progress after deletions"] && s.deleted.Load() {
		return nil
	}
	return s.Watcher.RequestProgress(ctx)
}

func (s *shim) Txn(ctx context.Context) clientv3.Txn { return &shimTxn{Txn: s.KV.Txn(ctx), of: s} }

type shimTxn struct {
	clientv3.Txn
	of      *shim
	deletes bool
}

func (t *shimTxn) If(conditions ...clientv3.Cmp) clientv3.Txn {
	t.Txn = t.Txn.If(conditions...)
	return t
}

func (t *shimTxn) Then(operations ...clientv3.Op) clientv3.Txn {
	t.Txn, t.deletes = t.Txn.Then(operations...), slices.ContainsFunc(operations, clientv3.Op.IsDelete)
	return t
}

func (t *shimTxn) Else(operations ...clientv3.Op) clientv3.Txn {
	t.Txn = t.Txn.Else(operations...)
	return t
}

func (t *shimTxn) Commit() (*clientv3.TxnResponse, error) {
	if t.deletes {
		t.of.deleted.Store(true)
	}
	return t.Txn.Commit()
}

func (s *shim) Close() error { return errors.Join(s.Watcher.Close(), s.Lease.Close()) }

func (s *shim) Grant(ctx context.Context, ttl int64) (*clientv3.LeaseGrantResponse, error) {
	if s.lacks["leases"] {
		return nil, errLacking
	}
	return s.Lease.Grant(ctx, ttl)
}

func (s *shim) Compact(
	ctx context.Context, revision int64, options ...clientv3.CompactOption,
) (*clientv3.CompactResponse, error) {
	if s.lacks["compaction"] {
		return nil, errLacking
	}
	return s.KV.Compact(ctx, revision, options...)
}

// newShim returns a store on a shim.
func newShim(t *testing.T, lacks ...string) *Store {
	client := etcdtest.Remote(t)
	s := &shim{
		Maintenance: client.Maintenance, Watcher: client.Watcher, Lease: client.Lease,
		KV: client.KV, lacks: map[string]bool{},
	}
	for _, feature := range lacks {
		s.lacks[feature] = true
	}
	client.Maintenance, client.Watcher, client.Lease, client.KV = s, s, s, s
	return New(client, "/registry")
}

func TestFeaturesOfShims(t *testing.T) {
	for lacking, want := range map[string]struct {
		progress bool
		log      string
	}{
		"":                         {true, ""},
		"leases":                   {true, "The store grants no leases"},
		"progress":                 {false, "The store sends no progress notifications"},
		"progress after deletions": {false, "The store sends no progress notifications"},
	} {
		t.Run("without "+lacking, func(t *testing.T) {
			t.Parallel()
			s, log := newShim(t, lacking), &strings.Builder{}
			if s.shimTimeout = time.Minute; !want.progress {
				s.shimTimeout = 100 * time.Millisecond
			}
			s.CheckFeatures(t.Context(), clock.NewFakeClock(time.Now()), linesTo(log))
			if got := s.SupportsProgress(); got != want.progress {
				t.Errorf("progress is supported: %v", got)
			}
			if !strings.Contains(log.String(), "The store is not etcd") || !strings.Contains(log.String(), want.log) ||
				want.log == "" && strings.Count(log.String(), "\n") != 1 {
				t.Errorf("logged:\n%s", log)
			}
			if left, err := s.client.Get(t.Context(), "/", clientv3.WithPrefix()); err != nil || left.Count != 0 {
				t.Errorf("the test has left %v, %v", left, err)
			}
		})
	}
}

// TestShimWithoutCompaction checks that RunCompaction ends if the store cannot compact, instead of failing once per
// interval.
func TestShimWithoutCompaction(t *testing.T) {
	s, log, clock := newShim(t, "compaction"), &strings.Builder{}, clock.NewFakeClock(time.Now())
	ended := make(chan struct{})
	go func() { s.RunCompaction(t.Context(), time.Second, nil, clock, linesTo(log)); close(ended) }()
	for {
		select {
		case <-ended:
			if !strings.Contains(log.String(), "The store does not compact") {
				t.Errorf("logged:\n%s", log)
			}
			return
		case <-time.After(time.Millisecond):
			if clock.HasWaiters() {
				clock.Step(time.Second)
			}
		}
	}
}

// linesTo returns a logger whose lines one goroutine writes to b.
func linesTo(b *strings.Builder) logr.Logger {
	return funcr.New(func(_, line string) { b.WriteString(line + "\n") }, funcr.Options{})
}
