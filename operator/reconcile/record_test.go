package reconcile

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/etcd"
	"quorate.dev/operator/observed"
)

// TestMemberRecord checks the record that the next pod of a member gets.
func TestMemberRecord(t *testing.T) {
	annotated := map[string]string{desired.MemberIDAnnotation: "7"}
	stored := &v1alpha1.MemberStatus{
		Name: "demo-0", ID: "7", Volume: "u1", Acknowledged: &v1alpha1.Acknowledged{Index: 10, Term: 2, Revision: 5},
	}
	bootstrapped := &v1alpha1.Membership{Bootstrapped: true}
	for name, c := range map[string]struct {
		annotations  map[string]string
		status       *v1alpha1.MemberStatus
		membership   *v1alpha1.Membership
		members      []etcd.Member
		acknowledged map[uint64]etcd.Acknowledged
		restore      bool
		want         desired.MemberRecord
	}{
		"initial member":                   {want: desired.MemberRecord{Volume: "u1"}},
		"initial member that has started":  {annotations: annotated, want: desired.MemberRecord{Volume: "u1", Started: true, MemberID: 7}},
		"restored data":                    {annotations: annotated, restore: true, want: desired.MemberRecord{Volume: "u1", Started: true}},
		"learner that has not started":     {membership: bootstrapped, members: []etcd.Member{{Name: "demo-0", ID: 7, Learner: true}}, want: desired.MemberRecord{Volume: "u1"}},
		"voter":                            {membership: bootstrapped, members: []etcd.Member{{Name: "demo-0", ID: 7, Started: true}}, want: desired.MemberRecord{Volume: "u1", Started: true, MemberID: 7}},
		"member of an etcd without quorum": {membership: bootstrapped, status: stored, want: desired.MemberRecord{Volume: "u1", Started: true, MemberID: 7, Index: 10, Term: 2}},
		"newer observation": {
			membership: bootstrapped, status: stored, acknowledged: map[uint64]etcd.Acknowledged{7: {Index: 20, Term: 3}},
			want: desired.MemberRecord{Volume: "u1", Started: true, MemberID: 7, Index: 20, Term: 3},
		},
		"status of a former member with the name": {
			membership: bootstrapped, status: stored, members: []etcd.Member{{Name: "demo-0", ID: 8, Started: true}},
			want: desired.MemberRecord{Volume: "u1", Started: true, MemberID: 8},
		},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := &v1alpha1.ApiServerCluster{ObjectMeta: metav1.ObjectMeta{Name: "demo"}}
			cluster.Status.Membership = c.membership
			if c.status != nil {
				cluster.Status.Members = []v1alpha1.MemberStatus{*c.status}
			}
			if c.restore {
				cluster.Spec.Restore = &v1alpha1.Restore{}
			}
			claim := corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "demo-0", UID: "u1", Annotations: c.annotations}}
			s := &observed.State{
				Cluster: cluster, Claims: []corev1.PersistentVolumeClaim{claim}, Members: c.members, Acknowledged: c.acknowledged,
			}
			if got := memberRecord(s, "demo-0"); got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
			if fresh := initialCluster(s, "demo-0").New; fresh && c.want.Started {
				t.Error("a member that has started bootstraps a new cluster")
			}
		})
	}
}

// TestAcknowledgedStatesOutliveUnhealthyMembers: a member that does not report its state keeps its last known state.
func TestAcknowledgedStatesOutliveUnhealthyMembers(t *testing.T) {
	pool := etcd.NewPool()
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	pool.Acknowledge("ns/demo", []etcd.Member{{ID: 1, Applied: 5, Term: 2, Revision: 4}, {ID: 2, Applied: 3, Term: 2}}, now)
	pool.Acknowledge("ns/demo", []etcd.Member{{ID: 1}}, now.Add(time.Second))
	got := pool.Acknowledged("ns/demo")
	if len(got) != 1 || got[1].Index != 5 || got[1].Revision != 4 || !got[1].Time.Equal(now) {
		t.Errorf("got %+v, want the first state of member 1 only", got)
	}
	pool.Forget("ns/demo")
	if len(pool.Acknowledged("ns/demo")) != 0 {
		t.Error("the states of a deleted cluster are still known")
	}
}
