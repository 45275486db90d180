package volumes

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/etcd"
	"quorate.dev/operator/observed"
	"quorate.dev/operator/reconcile/owned/ownedtest"
)

// TestMemberRecord checks which record the next pod of a member gets.
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
		"initial member": {want: desired.MemberRecord{Volume: "u1"}},
		"initial member that has started": {
			annotations: annotated, want: desired.MemberRecord{Volume: "u1", Started: true, MemberID: 7},
		},
		"restored data": {
			annotations: annotated, restore: true, want: desired.MemberRecord{Volume: "u1", Started: true},
		},
		"learner that has not started": {
			membership: bootstrapped, members: []etcd.Member{{Name: "demo-0", ID: 7, Learner: true}},
			want: desired.MemberRecord{Volume: "u1"},
		},
		"voter": {
			membership: bootstrapped, members: []etcd.Member{{Name: "demo-0", ID: 7, Started: true}}, want: desired.MemberRecord{
				Volume: "u1", Started: true, MemberID: 7,
			},
		},
		"member of an etcd without quorum": {
			membership: bootstrapped, status: stored, want: desired.MemberRecord{
				Volume: "u1", Started: true, MemberID: 7, Index: 10, Term: 2,
			},
		},
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
			claim := corev1.PersistentVolumeClaim{
				ObjectMeta: metav1.ObjectMeta{Name: "demo-0", UID: "u1", Annotations: c.annotations},
			}
			s := &observed.State{
				Cluster: cluster, Claims: []corev1.PersistentVolumeClaim{claim}, Members: c.members, Acknowledged: c.acknowledged,
			}
			if got := MemberRecord(s, "demo-0"); got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

// TestVolumeWithLostWritesIsRetained checks the claim of a member that has acknowledged writes which the others lack.
// It is annotated, keeps the annotation when the pod is gone, and is retained instead of deleted when its member has
// been replaced.
func TestVolumeWithLostWritesIsRetained(t *testing.T) {
	host, ctx := ownedtest.NewHost(t), t.Context()
	objects := host.Objects
	cluster := ownedtest.NewCluster(func(c *v1alpha1.ApiServerCluster) {
		c.Annotations = map[string]string{v1alpha1.ReplaceMembersAnnotation: "demo-0"}
	})
	claim := desired.Claim(cluster, "demo-0")
	claim.OwnerReferences = []metav1.OwnerReference{
		*metav1.NewControllerRef(cluster, v1alpha1.GroupVersion.WithKind("ApiServerCluster")),
	}
	for _, object := range []client.Object{cluster, claim} {
		if err := objects.Client.Create(ctx, object); err != nil {
			t.Fatal(err)
		}
	}
	pod := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "demo-0"}, Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
			Name: desired.ServerContainer, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
				ExitCode: desired.LostWritesExitCode, Message: "revision 7 against 5",
			}},
		}}},
	}
	observe := func(members []etcd.Member, pods ...corev1.Pod) *observed.State {
		if err := objects.Client.Get(ctx, client.ObjectKeyFromObject(cluster), cluster); err != nil {
			t.Fatal(err)
		}
		state, err := observed.Read(ctx, objects.Client, cluster, "")
		if err != nil {
			t.Fatal(err)
		}
		state.Pods = pods
		state = state.WithMembers(members, nil)
		if err := Record(ctx, objects, state); err != nil {
			t.Fatal(err)
		}
		return state
	}
	annotation := func() string {
		if err := objects.Client.Get(ctx, client.ObjectKeyFromObject(claim), claim); err != nil {
			t.Fatal(err)
		}
		return claim.Annotations[desired.LostWritesAnnotation]
	}
	down, healthy := []etcd.Member{{Name: "demo-0", ID: 7}}, []etcd.Member{{Name: "demo-0", ID: 7, Healthy: true}}
	observe(healthy)
	if got := annotation(); got != "" {
		t.Errorf("a healthy member: annotation %q", got)
	}
	observe(down, pod)
	if got := annotation(); got != "revision 7 against 5" {
		t.Errorf("a member that has stopped: annotation %q", got)
	}
	observe(healthy)
	if got := annotation(); got != "" {
		t.Errorf("after a recovery: annotation %q", got)
	}
	observe(down, pod)
	observe(down)
	if got := annotation(); got != "revision 7 against 5" {
		t.Errorf("without its pod: annotation %q", got)
	}
	if cluster.Annotations[v1alpha1.ReplaceMembersAnnotation] == "" {
		t.Error("the request was forgotten before the member was replaced")
	}
	if err := Release(ctx, objects, observe(nil), "demo-0"); err != nil {
		t.Fatal(err)
	}
	if annotation() == "" || len(claim.OwnerReferences) != 0 || desired.Owns(cluster, claim) ||
		claim.DeletionTimestamp != nil {
		t.Errorf("the claim is not retained: %+v", claim.ObjectMeta)
	}
	if got := host.Events(); len(got) != 1 || !strings.Contains(got[0], v1alpha1.ReasonVolumeRetained) {
		t.Errorf("events: %v", got)
	}
	if state := observe(nil); len(state.Claims) != 0 || len(state.Released) != 1 ||
		cluster.Annotations[v1alpha1.ReplaceMembersAnnotation] != "" {
		t.Errorf("after the replacement: claims %v, annotations %v", state.Claims, cluster.Annotations)
	}
}
