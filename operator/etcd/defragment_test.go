package etcd

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/util/wait"
)

// TestDefragment releases the space of deleted keys, and refuses to defragment a member with another ID.
func TestDefragment(t *testing.T) {
	m := startMember(t)
	client, err := NewClient([]Endpoint{m.endpoint}, m.port, m.credentials)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	member := client.clientOf(m.endpoint.Name)
	for i := range 40 {
		if _, err := member.Put(t.Context(), fmt.Sprint(i), strings.Repeat("x", 1<<20)); err != nil {
			t.Fatal(err)
		}
	}
	deleted, err := member.Delete(t.Context(), "", clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := member.Compact(t.Context(), deleted.Header.Revision, clientv3.WithCompactPhysical()); err != nil {
		t.Fatal(err)
	}
	status, err := member.Status(t.Context(), member.Endpoints()[0])
	if err != nil {
		t.Fatal(err)
	}
	before, id := status.DbSize, status.Header.MemberId

	pool := NewPool()
	run := func(id uint64) *Defragmentation {
		t.Helper()
		pool.Defragment("ns/demo", m.endpoint, id, m.port, m.credentials)
		pool.Defragment("ns/demo", m.endpoint, id, m.port, m.credentials) // does nothing while the first one runs
		pool.Drop("ns/demo")
		err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, time.Minute, true, func(
			context.Context,
		) (bool, error) {
			return pool.Defragmentation("ns/demo").Finished, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		defer pool.ForgetDefragmentation("ns/demo")
		return pool.Defragmentation("ns/demo")
	}
	if d := run(id + 1); d.Err == nil || !strings.Contains(d.Err.Error(), "another member") {
		t.Errorf("with the ID of another member: %v", d.Err)
	}
	if d := run(id); d.Err != nil || d.Member != m.endpoint.Name {
		t.Errorf("%+v", d)
	}
	if pool.Defragmentation("ns/demo") != nil {
		t.Error("a forgotten defragmentation is still known")
	}
	status, err = member.Status(t.Context(), member.Endpoints()[0])
	if err != nil || status.DbSize > before/2 {
		t.Errorf("%d of %d bytes are left, %v", status.DbSize, before, err)
	}
}

// TestForgetRunningDefragmentation checks that the result for a deleted cluster does not count for a new one with the
// same name.
func TestForgetRunningDefragmentation(t *testing.T) {
	pool := NewPool()
	former := pool.startDefragmentation("ns/demo", "demo-0")
	pool.Forget("ns/demo")
	next := pool.startDefragmentation("ns/demo", "demo-0")
	if next == nil {
		t.Fatal("the defragmentation of a deleted cluster prevents others")
	}
	pool.finishDefragmentation("ns/demo", former, nil)
	if d := pool.Defragmentation("ns/demo"); d.Finished {
		t.Error("the result of the deleted cluster counts for the new one")
	}
	pool.finishDefragmentation("ns/demo", next, nil)
	if d := pool.Defragmentation("ns/demo"); !d.Finished {
		t.Error("the result is lost")
	}
}
