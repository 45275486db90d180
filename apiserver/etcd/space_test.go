package etcd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"quorate.dev/apiserver/config"
	"quorate.dev/test/upstream"
)

// fill writes until the member has reached its quota.
func fill(t *testing.T, m *Member) {
	t.Helper()
	value := strings.Repeat("x", 100<<10)
	for i := range 1000 {
		_, err := m.Client().Put(t.Context(), fmt.Sprint("key-", i), value)
		if errors.Is(rpctypes.Error(err), rpctypes.ErrNoSpace) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Fatal("the quota is not reached")
}

// small returns the flags of a member with a small quota.
func small(t *testing.T) config.Member {
	t.Helper()
	member := single(t)
	member.QuotaBackendBytes = 8 << 20
	return member
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for !holds() {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			t.Fatalf("timed out: %s", what)
		}
	}
}

func writable(t *testing.T, m *Member) func() bool {
	return func() bool {
		_, err := m.Client().Put(t.Context(), "another-key", "value")
		return err == nil
	}
}

// A member that has reached its quota can be written to after deletion, compaction and defragmentation.
func TestAlarmIsDisarmedWhenThereIsRoom(t *testing.T) {
	upstream.NeedsTime(t)
	t.Parallel()
	member := small(t)
	m := start(t, member)
	await(t, "ready", m.Ready())
	fill(t, m)
	if space := m.Space(); !space.NoSpace || space.Quota != 8<<20 || space.Size < space.InUse {
		t.Errorf("at the quota: %+v", space)
	}
	deleted, err := m.Client().Delete(t.Context(), "key-", clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Client().Compact(t.Context(), deleted.Header.Revision); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the measurement of what compaction has freed", func() bool { return m.Space().InUse < 2<<20 })
	if writable(t, m)() {
		t.Error("a write succeeded before the database was defragmented")
	}
	client := local(t, member.DataDirectory) // the in-process client panics
	if _, err := client.Defragment(t.Context(), client.Endpoints()[0]); err != nil {
		t.Fatal(err)
	}
	eventually(t, "writes", writable(t, m))
	if space := m.Space(); space.NoSpace || space.Size > 2<<20 {
		t.Errorf("after defragmentation: %+v", space)
	}
}

// A member that has reached its quota starts, and can be written to if its quota is larger then.
func TestQuotaIsRaised(t *testing.T) {
	t.Parallel()
	member := small(t)
	m := start(t, member)
	await(t, "ready", m.Ready())
	fill(t, m)
	member.QuotaBackendBytes = 2 * m.Space().Size // writes between two commits may exceed the quota by far
	stop(t, m)
	m = start(t, member)
	await(t, "ready", m.Ready())
	eventually(t, "writes", writable(t, m))
}

// The alarm of a member that has been removed, or that a snapshot was taken of, does not outlast it.
func TestAlarmOfMissingMemberIsDisarmed(t *testing.T) {
	t.Parallel()
	m := start(t, single(t))
	await(t, "ready", m.Ready())
	raise := &etcdserverpb.AlarmRequest{
		Action: etcdserverpb.AlarmRequest_ACTIVATE, Alarm: etcdserverpb.AlarmType_NOSPACE, MemberID: 1,
	}
	if _, err := m.server.Alarm(t.Context(), raise); err != nil {
		t.Fatal(err)
	}
	eventually(t, "writes", writable(t, m))
}

// A member whose database holds little data gives the space back when it starts.
func TestStartDefragments(t *testing.T) {
	t.Parallel()
	member := small(t)
	m := start(t, member)
	await(t, "ready", m.Ready())
	fill(t, m)
	deleted, err := m.Client().Delete(t.Context(), "key-", clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Client().Compact(t.Context(), deleted.Header.Revision, clientv3.WithCompactPhysical()); err != nil {
		t.Fatal(err)
	}
	stop(t, m)
	m = start(t, member)
	await(t, "ready", m.Ready())
	eventually(t, "writes", writable(t, m))
	if space := m.Space(); space.Size > 2<<20 {
		t.Errorf("after the restart: %+v", space)
	}
}
