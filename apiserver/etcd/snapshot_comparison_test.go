package etcd

import (
	"context"
	"fmt"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"quorate.dev/test/upstream"
)

// TestQuorumNeedsSnapshot checks that a lagging voter accepts the snapshot of a leader that needs this voter for its
// quorum, and therefore cannot be confirmed by a quorum before.
func TestQuorumNeedsSnapshot(t *testing.T) {
	upstream.NeedsTime(t)
	flags, members := trio(t)
	stop(t, members[2])
	write(t, members[0].Client())
	stop(t, members[1])
	stop(t, members[0])
	members[0] = start(t, flags[0])
	stale := start(t, flags[2])
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var err error
	for ctx.Err() == nil {
		c, done := context.WithTimeout(ctx, 3*time.Second)
		_, err = members[0].Client().Put(c, "after", "x")
		done()
		if err == nil {
			break
		}
	}
	if err != nil {
		leader := members[0].server.MemberID()
		t.Errorf("no write with two of three voters: %v; comparison: %v", err,
			stale.compareWith(t.Context(), leader, stale.peerURLs(leader)))
	}
}

func walRecord(t *testing.T, kind int64, content proto.Message) *walpb.Record {
	t.Helper()
	data, err := proto.Marshal(content)
	if err != nil {
		t.Fatal(err)
	}
	return &walpb.Record{Type: &kind, Data: data}
}

// TestSnapshotReplacesUncommittedEntries checks that entries of a former leader that were never committed do not count
// as committed after a snapshot has replaced them.
func TestSnapshotReplacesUncommittedEntries(t *testing.T) {
	for _, s := range []uint64{98, 101} {
		var l logTerms
		add := func(record *walpb.Record) {
			if err := l.advance(record); err != nil {
				t.Fatal(err)
			}
		}
		for i := uint64(1); i <= 100; i++ {
			add(walRecord(t, wal.EntryType, &raftpb.Entry{
				Index: proto.Uint64(i), Term: proto.Uint64(2), Data: fmt.Append(nil, i),
			}))
		}
		add(walRecord(t, wal.StateType, &raftpb.HardState{Term: proto.Uint64(3), Commit: proto.Uint64(90)}))
		add(walRecord(t, wal.SnapshotType, &walpb.Snapshot{Index: proto.Uint64(s), Term: proto.Uint64(3)}))
		var leader termHistory
		for i := uint64(1); i <= 110; i++ {
			term := uint64(2)
			if i > 90 {
				term = 3
			}
			leader.append(i, term, fmt.Append(nil, i))
		}
		r := termReport{Applied: 110, Terms: leader}
		committed := min(l.committed, l.history.Last)
		if r.lacks(committed, l.history.upTo(l.history.Last)) {
			t.Errorf("snapshot %d: false positive: %+v against %+v", s, l, leader)
		}
	}
}

// TestComparisonAfterStop checks that a comparison that runs while the member stops does not read its closed database.
func TestComparisonAfterStop(t *testing.T) {
	_, members := trio(t)
	follower := members[0]
	if leaderOf(t, members) == follower {
		follower = members[1]
	}
	follower.server.HardStop() // as awaitFailure does
	defer func() {
		if r := recover(); r != nil {
			t.Errorf("panic: %v", r)
		}
	}()
	_, _, err := follower.ledger.committed()
	t.Log(err)
}
