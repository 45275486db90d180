package etcd

import (
	"testing"
	"time"
)

// TestAcknowledgedStatesOutliveUnhealthyMembers checks that the last known state of a member is kept while the member
// does not report its state.
func TestAcknowledgedStatesOutliveUnhealthyMembers(t *testing.T) {
	pool := NewPool()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	pool.Acknowledge("ns/demo", []Member{{ID: 1, Applied: 5, Term: 2, Revision: 4}, {ID: 2, Applied: 3, Term: 2}}, now)
	pool.Acknowledge("ns/demo", []Member{{ID: 1}}, now.Add(time.Second))
	got := pool.Acknowledged("ns/demo")
	if len(got) != 1 || got[1].Index != 5 || got[1].Revision != 4 || !got[1].Time.Equal(now) {
		t.Errorf("got %+v, want the first state of member 1 only", got)
	}
	pool.Forget("ns/demo")
	if len(pool.Acknowledged("ns/demo")) != 0 {
		t.Error("the states of a deleted cluster are still known")
	}
}
