package members

import (
	"maps"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/etcd"
	"quorate.dev/operator/membership"
	"quorate.dev/operator/observed"
)

var now = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// bootstrapped returns the state of a cluster with the voter demo-0 and the learner demo-1, which has not started.
func bootstrapped() *observed.State {
	object := &v1alpha1.ApiServerCluster{ObjectMeta: metav1.ObjectMeta{Name: "demo", Namespace: "ns"}}
	object.Status.Membership = &v1alpha1.Membership{Bootstrapped: true, NextOrdinal: 2, JoiningMember: "demo-1"}
	return &observed.State{Cluster: object, Image: "quorate:1", Members: []etcd.Member{
		{ID: 1, Name: "demo-0", PeerURL: "https://a:2380", Started: true, Healthy: true, Leader: true},
		{ID: 2, Name: "demo-1", PeerURL: "https://b:2380", Learner: true},
	}}
}

func TestInitialCluster(t *testing.T) {
	url := func(name string) string { return "https://" + name + ".demo-members.ns.svc:2380" }
	starting := bootstrapped()
	starting.Cluster.Status.Membership = &v1alpha1.Membership{InitialMembers: []string{"demo-0", "demo-1"}}
	restored := bootstrapped()
	restored.Cluster.Spec.Restore = &v1alpha1.Restore{}
	restored.Cluster.Status.Membership = &v1alpha1.Membership{InitialMembers: []string{"demo-0"}}
	restored.Members = nil
	started := bootstrapped()
	started.Cluster.Status.Membership = &v1alpha1.Membership{InitialMembers: []string{"demo-0"}}
	started.Members = nil
	started.Claims = []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{
		Name: "demo-0", Annotations: map[string]string{desired.MemberIDAnnotation: "7"},
	}}}
	for name, c := range map[string]struct {
		state  *observed.State
		member string
		want   desired.InitialCluster
	}{
		// It must not bootstrap an empty etcd if its volume is lost.
		"restored member": {
			restored, "demo-0", desired.InitialCluster{PeerURLs: map[string]string{"demo-0": url("demo-0")}},
		},
		"initial member that has started": {
			started, "demo-0", desired.InitialCluster{PeerURLs: map[string]string{"demo-0": url("demo-0")}},
		},
		"initial member": {starting, "demo-0", desired.InitialCluster{
			New: true, PeerURLs: map[string]string{"demo-0": url("demo-0"), "demo-1": url("demo-1")},
		}},
		"new learner": {bootstrapped(), "demo-1", desired.InitialCluster{
			PeerURLs: map[string]string{"demo-0": "https://a:2380", "demo-1": "https://b:2380"},
		}},
		// With only itself in the initial cluster, etcd refuses to start without data.
		"restarted member": {bootstrapped(), "demo-0", desired.InitialCluster{
			PeerURLs: map[string]string{"demo-0": url("demo-0")},
		}},
	} {
		got := initialCluster(c.state, c.member)
		if got.New != c.want.New || !maps.Equal(got.PeerURLs, c.want.PeerURLs) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

func TestObservation(t *testing.T) {
	s := bootstrapped()
	s.Cluster.Status.Membership.JoiningSince = &metav1.Time{Time: now.Add(-observed.JoinTimeout - time.Second)}
	current, err := desired.Pod(s.Cluster, s.Image, desired.Replica{Name: "demo-0", Member: true}, "")
	if err != nil {
		t.Fatal(err)
	}
	outdated := current.DeepCopy()
	outdated.Name, outdated.Annotations[desired.ServerHashAnnotation] = "demo-1", "old"
	outdated.Status.Phase = corev1.PodFailed
	s.Pods = []corev1.Pod{*current, *outdated}
	s.Claims = []corev1.PersistentVolumeClaim{
		{ObjectMeta: metav1.ObjectMeta{Name: "demo-0"}, Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimLost}},
	}
	o := observation(s, desired.Configuration{}, nil, now)
	if o.Cluster != "demo" || o.Replicas != 3 || o.Voters != 3 || !o.HasQuorum || o.QuorumLost || o.External {
		t.Errorf("observation: %+v", o)
	}
	if i := o.Intent; !i.Bootstrapped || i.NextOrdinal != 2 || i.JoiningMember != "demo-1" || !i.JoinTimedOut {
		t.Errorf("intent: %+v", i)
	}
	if m := o.Members[1]; m.ID != 2 || m.Name != "demo-1" || !m.Learner || m.Started {
		t.Errorf("learner: %+v", m)
	}
	if p := o.Pods[0]; !p.Member || p.Outdated || p.Failed {
		t.Errorf("current pod: %+v", p)
	}
	if p := o.Pods[1]; !p.Outdated || !p.Failed {
		t.Errorf("outdated pod: %+v", p)
	}
	if c := o.Claims[0]; c.Name != "demo-0" || !c.Lost || c.Terminating {
		t.Errorf("lost claim: %+v", c)
	}
}

func TestEveryActionHasAnEventReason(t *testing.T) {
	for _, kind := range []membership.Kind{
		membership.Bootstrap, membership.Bootstrapped, membership.StartJoin, membership.FinishJoin, membership.AddLearner,
		membership.Promote, membership.MoveLeader, membership.RemoveMember, membership.CreateClaim, membership.DeleteClaim,
		membership.KeepClaim, membership.ReleaseClaim, membership.CreatePod, membership.CreateServer, membership.DeletePod,
	} {
		if eventReasons[kind] == "" {
			t.Errorf("no event reason for %s", kind)
		}
	}
}

func TestCountUpdated(t *testing.T) {
	pods := []membership.Pod{{Name: "demo-0"}, {Name: "demo-1", Outdated: true}, {Name: "demo-2", Terminating: true}}
	if n := countUpdated(pods); *n != 1 {
		t.Errorf("%d pods, want 1", *n)
	}
}
