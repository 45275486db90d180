package status

import (
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/etcd"
	"quorate.dev/operator/membership"
	"quorate.dev/operator/observed"
)

var now = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func pod(name string, ready bool) corev1.Pod {
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Status:     corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: status}}},
	}
}

// healthy returns a cluster of three healthy replicas.
func healthy() (*v1alpha1.ApiServerCluster, Input) {
	cluster := &v1alpha1.ApiServerCluster{ObjectMeta: metav1.ObjectMeta{Name: "demo", Namespace: "ns", Generation: 7}}
	cluster.Spec.Replicas = ptr.To[int32](3)
	cluster.Status.Membership = &v1alpha1.Membership{Bootstrapped: true, NextOrdinal: 3}
	state := &observed.State{Cluster: cluster, Image: "quorate:1"}
	for i, name := range []string{"demo-0", "demo-1", "demo-2"} {
		state.Pods = append(state.Pods, pod(name, true))
		state.Members = append(state.Members, etcd.Member{
			ID: uint64(i + 10), Name: name, Started: true, Healthy: true, Leader: i == 1,
		})
	}
	return cluster, Input{
		State: state, Action: membership.Action{Kind: membership.Wait}, Now: now, Endpoint: "https://demo.ns.svc:6443",
		Certificates: []Expiry{
			{Secret: "demo-serving", At: now.Add(300 * 24 * time.Hour), Renewal: now.Add(200 * 24 * time.Hour)},
			{Secret: "demo-client-ca", At: now.Add(3000 * 24 * time.Hour), Renewal: now.Add(2000 * 24 * time.Hour)},
		},
	}
}

// withCondition adds a condition to the stored status.
func withCondition(
	cluster *v1alpha1.ApiServerCluster, kind string, status metav1.ConditionStatus, reason string, ago time.Duration,
) {
	cluster.Status.Conditions = append(cluster.Status.Conditions, metav1.Condition{
		Type: kind, Status: status, Reason: reason, LastTransitionTime: metav1.NewTime(now.Add(-ago)),
	})
}

func TestConditions(t *testing.T) {
	type want map[string]string // reason by condition; other conditions are not compared
	unreachable := func(cluster *v1alpha1.ApiServerCluster, in *Input) {
		in.State.Members, in.State.EtcdErr = nil, etcd.ErrUnreachable
	}
	for name, c := range map[string]struct {
		change func(*v1alpha1.ApiServerCluster, *Input)
		want   want
	}{
		"healthy": {
			func(*v1alpha1.ApiServerCluster, *Input) {},
			want{
				"Available": "Serving", "Progressing": "Reconciled", "Degraded": "AsExpected", "EtcdQuorum": "MembersHealthy",
				"CertificatesValid": "Valid",
			},
		},
		"hibernated": {
			func(cluster *v1alpha1.ApiServerCluster, in *Input) {
				cluster.Spec.Replicas = ptr.To[int32](0)
				in.State.Pods = nil
				unreachable(cluster, in)
				withCondition(cluster, "EtcdQuorum", metav1.ConditionUnknown, "EtcdUnreachable", time.Hour)
			},
			want{"Available": "Hibernated", "Progressing": "Reconciled", "Degraded": "AsExpected", "EtcdQuorum": "Hibernated"},
		},
		"one replica is not ready": {
			func(_ *v1alpha1.ApiServerCluster, in *Input) { in.State.Pods[0] = pod("demo-0", false) },
			want{"Available": "Serving", "Progressing": "WaitingForReplicas"},
		},
		"no replica is ready": {
			func(_ *v1alpha1.ApiServerCluster, in *Input) {
				for i := range in.State.Pods {
					in.State.Pods[i] = pod(in.State.Pods[i].Name, false)
				}
			},
			want{"Available": "NoReadyReplicas"},
		},
		"a member is unhealthy": {
			func(_ *v1alpha1.ApiServerCluster, in *Input) { in.State.Members[2].Healthy = false },
			want{"EtcdQuorum": "MembersUnhealthy", "Available": "Serving"},
		},
		"etcd is unreachable": {
			func(cluster *v1alpha1.ApiServerCluster, in *Input) {
				unreachable(cluster, in)
				withCondition(cluster, v1alpha1.EtcdQuorum, metav1.ConditionTrue, "MembersHealthy", time.Hour)
			},
			want{"EtcdQuorum": "EtcdUnreachable", "Available": "Serving", "Degraded": "AsExpected"},
		},
		"etcd is unreachable for the timeout": {
			func(cluster *v1alpha1.ApiServerCluster, in *Input) {
				unreachable(cluster, in)
				withCondition(cluster, v1alpha1.EtcdQuorum, metav1.ConditionUnknown, "EtcdUnreachable", observed.QuorumLossTimeout)
			},
			want{"EtcdQuorum": "QuorumLost", "Available": "QuorumLost", "Degraded": "QuorumLost"},
		},
		"the quorum is still lost": {
			func(cluster *v1alpha1.ApiServerCluster, in *Input) {
				unreachable(cluster, in)
				withCondition(cluster, v1alpha1.EtcdQuorum, metav1.ConditionFalse, "QuorumLost", 0)
			},
			want{"EtcdQuorum": "QuorumLost", "Available": "QuorumLost"},
		},
		"the quorum is lost, and nothing changes": {
			func(cluster *v1alpha1.ApiServerCluster, in *Input) {
				unreachable(cluster, in)
				withCondition(cluster, v1alpha1.EtcdQuorum, metav1.ConditionFalse, "QuorumLost", 0)
				in.Action.Reason = "Waiting for etcd to regain its quorum"
			},
			want{"EtcdQuorum": "QuorumLost", "Progressing": "QuorumLost"},
		},
		"the quorum is lost, and a pod is created": {
			func(cluster *v1alpha1.ApiServerCluster, in *Input) {
				unreachable(cluster, in)
				withCondition(cluster, v1alpha1.EtcdQuorum, metav1.ConditionFalse, "QuorumLost", 0)
				in.Action = membership.Action{Kind: membership.CreatePod, Name: "demo-0"}
			},
			want{"EtcdQuorum": "QuorumLost", "Progressing": "Reconciling"},
		},
		"an external etcd does not respond": {
			func(cluster *v1alpha1.ApiServerCluster, in *Input) {
				cluster.Spec.Etcd.External = &v1alpha1.ExternalEtcd{Endpoints: []string{"https://etcd.example.org:2379"}}
				in.State.Pods[0] = pod("demo-0", false)
				in.WithoutEtcd = []string{"demo-0"}
			},
			want{"Degraded": "EtcdUnreachable"},
		},
		"the quorum is still lost, one member survives": {
			func(cluster *v1alpha1.ApiServerCluster, in *Input) {
				unreachable(cluster, in)
				withCondition(cluster, v1alpha1.EtcdQuorum, metav1.ConditionFalse, "QuorumLost", 0)
				in.State.Survivors = []etcd.Survivor{
					{Name: "demo-0", Reachable: true, Revision: 7, Term: 2, Index: 9}, {Name: "demo-1"},
				}
			},
			want{"EtcdQuorum": "QuorumLost"},
		},
		"a recovery is requested": {
			func(cluster *v1alpha1.ApiServerCluster, in *Input) {
				unreachable(cluster, in)
				withCondition(cluster, v1alpha1.EtcdQuorum, metav1.ConditionFalse, "QuorumLost", 0)
				cluster.Spec.Recovery = &v1alpha1.Recovery{RequestID: "second"}
				cluster.Status.Recovery = &v1alpha1.RecoveryStatus{
					Request: v1alpha1.Recovery{RequestID: "first"}, Stage: v1alpha1.RecoveryCompleted,
				}
			},
			want{"EtcdQuorum": "QuorumLost", "Recovered": "Pending"},
		},
		"the data is being recovered": {
			func(cluster *v1alpha1.ApiServerCluster, in *Input) {
				unreachable(cluster, in)
				cluster.Status.Membership.Bootstrapped = false
				cluster.Status.Recovery = &v1alpha1.RecoveryStatus{Stage: v1alpha1.RecoveryRestoring, Member: "demo-2"}
			},
			want{"EtcdQuorum": "Recovering", "Recovered": "Restoring", "Degraded": "Recovering"},
		},
		"the recovery fails": {
			func(cluster *v1alpha1.ApiServerCluster, in *Input) {
				unreachable(cluster, in)
				cluster.Status.Membership.Bootstrapped = false
				cluster.Status.Recovery = &v1alpha1.RecoveryStatus{
					Stage: v1alpha1.RecoveryRestoring, Member: "demo-2", Reason: "RecoveryFailed", Message: "there is no data",
				}
			},
			want{"Recovered": "RecoveryFailed", "Degraded": "Recovering"},
		},
		"the quorum is recovered": {
			func(cluster *v1alpha1.ApiServerCluster, _ *Input) {
				cluster.Status.Recovery = &v1alpha1.RecoveryStatus{Stage: v1alpha1.RecoveryCompleted, Member: "demo-2", Revision: 7}
			},
			want{"Recovered": "QuorumRecovered", "EtcdQuorum": "MembersHealthy"},
		},
		"the initial members are starting": {
			func(cluster *v1alpha1.ApiServerCluster, in *Input) {
				unreachable(cluster, in)
				cluster.Status.Membership.Bootstrapped = false
				in.Action.Reason = "Waiting for the initial members to form a quorum"
			},
			want{"EtcdQuorum": "BootstrappingEtcd", "Progressing": "Waiting"},
		},
		"etcd rejects a change": {
			func(_ *v1alpha1.ApiServerCluster, in *Input) {
				in.Action = membership.Action{Kind: membership.RemoveMember, Name: "demo-2"}
				in.Rejected = errors.New("unhealthy cluster")
			},
			want{"Progressing": "WaitingForEtcd", "Degraded": "AsExpected"},
		},
		"invalid spec": {
			func(_ *v1alpha1.ApiServerCluster, in *Input) { in.Invalid = errors.New("spec.x\nspec.y") },
			want{
				"Degraded": "InvalidSpec", "Progressing": "InvalidSpec", "Available": "Serving", "EtcdQuorum": "MembersHealthy",
			},
		},
		"failed step": {
			func(_ *v1alpha1.ApiServerCluster, in *Input) { in.Errors = []error{errors.New("services: no")} },
			want{"Degraded": "ReconcileFailed"},
		},
		"state not read": {
			func(_ *v1alpha1.ApiServerCluster, in *Input) {
				in.State, in.Certificates, in.Errors = nil, nil, []error{errors.New("observation: no")}
			},
			want{
				"Available": "NotObserved", "EtcdQuorum": "NotObserved", "Progressing": "NotObserved",
				"CertificatesValid": "NotObserved", "Degraded": "ReconcileFailed",
			},
		},
		"image pull fails": {
			func(_ *v1alpha1.ApiServerCluster, in *Input) {
				in.State.Pods[0] = pod("demo-0", false)
				in.State.Pods[0].Status.ContainerStatuses = []corev1.ContainerStatus{{
					State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}},
				}}
			},
			want{"Degraded": "PodsFailing"},
		},
		"etcd alarm": {
			func(_ *v1alpha1.ApiServerCluster, in *Input) { in.State.Members[0].Alarms = []string{"NOSPACE"} },
			want{"Degraded": "EtcdAlarm"},
		},
		"certificate expires soon": {
			func(_ *v1alpha1.ApiServerCluster, in *Input) {
				in.Certificates[0].At, in.Certificates[0].Renewal = now.Add(29*24*time.Hour), now.Add(-90*24*time.Hour)
			},
			want{"CertificatesValid": "ExpiringSoon"},
		},
		"certificate of minutes": {
			func(_ *v1alpha1.ApiServerCluster, in *Input) {
				in.Certificates[0].At, in.Certificates[0].Renewal = now.Add(time.Minute), now
			},
			want{"CertificatesValid": "Valid"},
		},
		"user's certificate is unusable": {
			func(_ *v1alpha1.ApiServerCluster, in *Input) {
				in.UserCertificateErr = errors.New("secret x does not exist")
			},
			want{"CertificatesValid": "InvalidCertificate", "Degraded": "AsExpected"},
		},
		"authorities are replaced": {
			func(_ *v1alpha1.ApiServerCluster, in *Input) {
				in.Rotations = []Rotation{{Name: "certificate authorities", Stage: "TrustBoth", Message: "Waiting for demo-0: x"}}
			},
			want{"CredentialsRotating": "TrustBoth", "Degraded": "AsExpected"},
		},
		"a replacement is interrupted": {
			func(cluster *v1alpha1.ApiServerCluster, in *Input) {
				cluster.Status.Rotations = &v1alpha1.Rotations{EncryptionKeys: &v1alpha1.Rotation{Stage: "Reissue"}}
				in.RotationsUnknown = true
			},
			want{"CredentialsRotating": "Reissue"},
		},
		"certificate expired": {
			func(_ *v1alpha1.ApiServerCluster, in *Input) { in.Certificates[0].At = now },
			want{"CertificatesValid": "Expired"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			cluster, in := healthy()
			c.change(cluster, &in)
			got := Compute(cluster, in)
			for kind, reason := range c.want {
				condition := meta.FindStatusCondition(got.Conditions, kind)
				if condition == nil || condition.Reason != reason {
					t.Errorf("%s: %+v, want reason %s", kind, condition, reason)
				}
				if condition != nil && condition.ObservedGeneration != 7 {
					t.Errorf("%s has observedGeneration %d, want 7", kind, condition.ObservedGeneration)
				}
			}
		})
	}
}

func TestFields(t *testing.T) {
	cluster, in := healthy()
	in.State.Members[2].Healthy = false
	got := Compute(cluster, in)
	if got.Ready != "3/3" || got.Replicas != 3 || got.Voters != 3 || got.Selector != "quorate.dev/cluster=demo" ||
		got.ObservedGeneration != 7 {
		t.Errorf("%+v", got)
	}
	if m := got.Members[1]; m.Role != "leader" || m.ID != "b" || !m.Ready {
		t.Errorf("%+v", m)
	}
	if m := got.Members[2]; m.Ready || m.UnhealthySince == nil || !m.UnhealthySince.Time.Equal(now) {
		t.Errorf("%+v", m)
	}
	cluster.Status = got
	in.Now = now.Add(time.Minute)
	if m := Compute(cluster, in).Members[2]; !m.UnhealthySince.Time.Equal(now) {
		t.Errorf("unhealthySince moved to %v", m.UnhealthySince)
	}
	in.State.Members, in.State.EtcdErr = nil, observed.ErrNotRead
	if next := Compute(cluster, in); !equality.Semantic.DeepEqual(next.Members, got.Members) {
		t.Errorf("not read: %+v", next.Members)
	}
	in.State.Members, in.State.EtcdErr = nil, etcd.ErrUnreachable
	for _, m := range Compute(cluster, in).Members {
		if m.Ready || m.Role == "leader" {
			t.Errorf("etcd unreachable, but member status is %+v", m)
		}
	}
}

// TestEffectiveVersion checks that the effective version only becomes newer: a cluster that has served an API stays
// marked after a later emulation of an older version.
func TestEffectiveVersion(t *testing.T) {
	cluster, in := healthy()
	for _, step := range []struct{ reported, effective, wantVersion, wantEffective string }{
		{"v1.36.3", "v1.36.0", "v1.36.3", "v1.36.0"},
		{"v1.37.2", "v1.36.0", "v1.37.2", "v1.36.0"},
		{"v1.36.3", "v1.36.0", "v1.36.3", "v1.36.0"}, // back
		{"v1.37.2", "v1.37.0", "v1.37.2", "v1.37.0"},
		{"", "", "v1.37.2", "v1.37.0"}, // no replica is ready
		{"v1.37.2", "v1.36.0", "v1.37.2", "v1.37.0"},
		{"custom", "custom", "custom", "v1.37.0"},
	} {
		in.Versions = observed.Versions{Reported: step.reported, Effective: step.effective}
		cluster.Status = Compute(cluster, in)
		if got := cluster.Status; got.Version != step.wantVersion || got.EffectiveVersion != step.wantEffective {
			t.Errorf("%+v: got %s, effective %s", step, got.Version, got.EffectiveVersion)
		}
	}
}

// TestMembersOfAHibernatedCluster checks that members are kept, and that a member that starts late does not count as
// unhealthy for the whole time.
func TestMembersOfAHibernatedCluster(t *testing.T) {
	cluster, in := healthy()
	cluster.Spec.Replicas = ptr.To[int32](0)
	cluster.Status.Members = []v1alpha1.MemberStatus{
		{Name: "demo-0", Role: "leader", Ready: true}, {
			Name: "demo-1", Role: "voter", UnhealthySince: &metav1.Time{Time: now},
		},
	}
	in.State.Pods, in.State.Members, in.State.EtcdErr = nil, nil, etcd.ErrUnreachable
	for _, m := range Compute(cluster, in).Members {
		if m.Ready || m.Role != "voter" || m.UnhealthySince != nil {
			t.Errorf("got %+v", m)
		}
	}
	if n := len(Compute(cluster, in).Members); n != 2 {
		t.Errorf("%d members are left", n)
	}
}

func TestObservedGenerationNeedsState(t *testing.T) {
	cluster, in := healthy()
	cluster.Status.ObservedGeneration = 6
	in.State = nil
	if got := Compute(cluster, in).ObservedGeneration; got != 6 {
		t.Errorf("observedGeneration without state: %d, want 6", got)
	}
}

func TestAPIServicesAvailable(t *testing.T) {
	cluster, in := healthy()
	if next := Compute(cluster, in); meta.FindStatusCondition(next.Conditions, v1alpha1.APIServicesAvailable) != nil {
		t.Error("a cluster without APIServices has the condition")
	}
	cluster.Status.APIServices = []v1alpha1.APIServiceStatus{
		{Name: "v1.a.example.com", Available: metav1.ConditionTrue},
		{Name: "v1.b.example.com", Available: metav1.ConditionUnknown, Reason: "NotEvaluated", Message: "why"},
	}
	next := Compute(cluster, in) // unknown: keep the status
	got := meta.FindStatusCondition(next.Conditions, v1alpha1.APIServicesAvailable)
	if got == nil || got.Status != metav1.ConditionFalse || got.Reason != "NotEvaluated" ||
		got.Message != "1 of 2 APIServices are not available: v1.b.example.com: why" || len(next.APIServices) != 2 {
		t.Errorf("got %+v of %v", got, next.APIServices)
	}
	in.APIServices = &[]v1alpha1.APIServiceStatus{}
	if next := Compute(cluster, in); len(next.APIServices) != 0 ||
		meta.FindStatusCondition(next.Conditions, v1alpha1.APIServicesAvailable) != nil {
		t.Errorf("got %v after the last APIService was deleted", next.APIServices)
	}
}

func TestTransitionTimes(t *testing.T) {
	cluster, in := healthy()
	cluster.Status = Compute(cluster, in)
	in.Now = now.Add(time.Hour)
	in.State.Pods[0] = pod("demo-0", false)
	next := Compute(cluster, in)
	for kind, want := range map[string]time.Time{v1alpha1.Available: now, v1alpha1.Progressing: in.Now} {
		if got := meta.FindStatusCondition(next.Conditions, kind).LastTransitionTime; !got.Time.Equal(want) {
			t.Errorf("%s: %v, want %v", kind, got, want)
		}
	}
}

func TestSurvivorsAreDescribed(t *testing.T) {
	s := &observed.State{
		Cluster: &v1alpha1.ApiServerCluster{}, Pods: []corev1.Pod{refusing("demo-2")},
		Survivors: []etcd.Survivor{
			{Name: "demo-0", Reachable: true, Revision: 7, Term: 2, Index: 9}, {Name: "demo-1"}, {Name: "demo-2"},
		},
	}
	want := "demo-0 has revision 7 (raft term 2, index 9); demo-1 is unreachable; demo-2 does not start, because its " +
		"volume does not have its data; "
	if got := survivors(s); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := acknowledgedRevisions(s); got != "" {
		t.Errorf("without acknowledged revisions: %q", got)
	}
	s.Acknowledged = map[uint64]etcd.Acknowledged{3: {Revision: 9}}
	if got := acknowledgedRevisions(s); !strings.Contains(got, "would lose revisions 8 to 9") {
		t.Errorf("got %q, want the revisions that a recovery loses", got)
	}
}

// TestRequestedRotationIsNotComplete checks a new generation of the spec for which no step has decided yet whether
// credentials have to be replaced. The condition CredentialsRotating must not be copied from the former generation with
// the new observedGeneration, because clients would conclude that the requested rotation is complete.
func TestRequestedRotationIsNotComplete(t *testing.T) {
	cluster, in := healthy()
	cluster.Generation = 1
	cluster.Status = Compute(cluster, in)
	cluster.Generation, in.RotationsUnknown = 2, true
	for _, want := range []int64{1, 2} {
		got := Compute(cluster, in)
		rotating := meta.FindStatusCondition(got.Conditions, v1alpha1.CredentialsRotating)
		if rotating.Status != metav1.ConditionFalse || rotating.ObservedGeneration != want || got.ObservedGeneration != 2 {
			t.Errorf("generation %d, %+v, want %d", got.ObservedGeneration, rotating, want)
		}
		in.RotationsUnknown = false
	}
}
