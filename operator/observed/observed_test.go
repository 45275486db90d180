package observed

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/etcd"
)

var now = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func demo() *v1alpha1.ApiServerCluster {
	return &v1alpha1.ApiServerCluster{ObjectMeta: metav1.ObjectMeta{Name: "demo", Namespace: "ns", UID: "demo-uid"}}
}

// memberPod returns a ready pod of a member, with the hash of the spec from which it was created.
func memberPod(name, hash string) corev1.Pod {
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{desired.RoleLabel: desired.RoleMember},
			Annotations: map[string]string{desired.ServerHashAnnotation: hash},
		},
		Status: corev1.PodStatus{
			PodIP: "127.0.0.1", Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		},
	}
}

// lister is a client.Reader with fixed lists.
type lister struct {
	client.Reader
	pods   []corev1.Pod
	claims []corev1.PersistentVolumeClaim
}

func (l lister) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	switch list := list.(type) {
	case *corev1.PodList:
		list.Items = l.pods
	case *corev1.PersistentVolumeClaimList:
		list.Items = l.claims
	}
	return nil
}

// TestReadIgnoresForeignObjects reads objects with copied labels. Only an owner reference identifies the owner.
func TestReadIgnoresForeignObjects(t *testing.T) {
	cluster := demo()
	owned := metav1.ObjectMeta{
		Name: "demo-0", OwnerReferences: []metav1.OwnerReference{{UID: cluster.UID, Controller: ptr.To(true)}},
	}
	former := metav1.ObjectMeta{
		Name: "demo-1", OwnerReferences: []metav1.OwnerReference{{UID: "former", Controller: ptr.To(true)}},
	}
	reader := lister{
		pods:   []corev1.Pod{{ObjectMeta: owned}, {ObjectMeta: former}, {}},
		claims: []corev1.PersistentVolumeClaim{{ObjectMeta: former}, {ObjectMeta: owned}},
	}
	s, err := Read(t.Context(), reader, cluster, "quorate:1")
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Pods) != 1 || s.Pod("demo-0") == nil || len(s.Claims) != 1 || s.Claim("demo-0") == nil {
		t.Errorf("Read(): pods %v, claims %v, want only demo-0", s.Pods, s.Claims)
	}
	if s.EtcdErr == nil {
		t.Error("Read(): etcd members are known")
	}
}

// TestReleasedClaims checks that claims that were released from a cluster are listed, but do not belong to it.
func TestReleasedClaims(t *testing.T) {
	cluster := demo()
	claim := desired.Claim(cluster, "demo-1")
	desired.Release(cluster, claim)
	again := desired.Claim(cluster, "demo-2") // adopted later
	desired.Release(cluster, again)
	desired.Detach(cluster, again)
	s, err := Read(t.Context(), lister{claims: []corev1.PersistentVolumeClaim{*claim, *again}}, cluster, "quorate:1")
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Released) != 1 || s.Released[0].Name != "demo-1" || s.Claim("demo-1") != nil || s.Claim("demo-2") == nil {
		t.Errorf("got claims %v, released %v", s.Claims, s.Released)
	}
}

// failing is a client.Reader that cannot list one type of objects.
type failing struct {
	lister
	list client.ObjectList
}

func (f failing) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	if reflect.TypeOf(list) == reflect.TypeOf(f.list) {
		return errors.New("timed out")
	}
	return f.lister.List(ctx, list, options...)
}

// TestUnreadableState checks that a cluster whose pods or claims cannot be listed is not mistaken for one without any:
// the operator would create them again.
func TestUnreadableState(t *testing.T) {
	for want, list := range map[string]client.ObjectList{
		"list pods: timed out":                     &corev1.PodList{},
		"list persistent volume claims: timed out": &corev1.PersistentVolumeClaimList{},
	} {
		s, err := Read(t.Context(), failing{list: list}, demo(), "quorate:1")
		if s != nil || err == nil || err.Error() != want {
			t.Errorf("got %v, %v, want %s", s, err, want)
		}
	}
}

func TestWithMembersCopies(t *testing.T) {
	before := &State{Cluster: demo(), EtcdErr: etcd.ErrUnreachable}
	after := before.WithMembers([]etcd.Member{{Name: "demo-0", Healthy: true}, {Name: "demo-1"},
		{Name: "demo-2", Learner: true}}, nil)
	if before.Member("demo-0") != nil || before.EtcdErr == nil {
		t.Errorf("WithMembers() changed its receiver: %+v", before)
	}
	if all, healthy := after.Voters(); all != 2 || healthy != 1 || after.EtcdErr != nil {
		t.Errorf("WithMembers(): %d voters, %d healthy, error %v", all, healthy, after.EtcdErr)
	}
}

func TestEndpoints(t *testing.T) {
	server, pending, failed := memberPod("demo-3", ""), memberPod("demo-1", ""), memberPod("demo-2", "")
	server.Labels = map[string]string{desired.RoleLabel: desired.RoleServer}
	pending.Status.PodIP = ""
	failed.Status.Phase = corev1.PodFailed
	s := &State{Cluster: demo(), Pods: []corev1.Pod{memberPod("demo-0", ""), pending, failed, server}}
	if got, want := s.Endpoints(), []etcd.Endpoint{{Name: "demo-0", Address: "127.0.0.1"}}; !slices.Equal(got, want) {
		t.Errorf("Endpoints(): %v, want %v", got, want)
	}
}

func TestQuorumLost(t *testing.T) {
	for name, c := range map[string]struct {
		bootstrapped bool
		err          error
		condition    metav1.ConditionStatus
		reason       string
		age          time.Duration
		want         bool
	}{
		"quorum": {true, nil, metav1.ConditionUnknown, "EtcdUnreachable", time.Hour, false},
		"not bootstrapped": {
			false, etcd.ErrUnreachable, metav1.ConditionUnknown, "EtcdUnreachable", time.Hour, false,
		},
		"no condition": {true, etcd.ErrUnreachable, "", "", 0, false},
		"unreachable for 9 s": {
			true, etcd.ErrUnreachable, metav1.ConditionUnknown, "EtcdUnreachable", 9 * time.Second, false,
		},
		"unreachable for 10 s": {
			true, etcd.ErrUnreachable, metav1.ConditionUnknown, "EtcdUnreachable", 10 * time.Second, true,
		},
		"was healthy until now":    {true, etcd.ErrUnreachable, metav1.ConditionTrue, "MembersHealthy", time.Hour, false},
		"lost, and not read since": {true, ErrNotRead, metav1.ConditionFalse, QuorumLostReason, time.Hour, false},
		"not read for an hour":     {true, ErrNotRead, metav1.ConditionUnknown, "NotObserved", time.Hour, false},
		"not read before":          {true, etcd.ErrUnreachable, metav1.ConditionUnknown, "NotObserved", time.Hour, false},
		"lost, and still without":  {true, etcd.ErrUnreachable, metav1.ConditionFalse, QuorumLostReason, 0, true},
	} {
		cluster := demo()
		cluster.Status.Membership = &v1alpha1.Membership{Bootstrapped: c.bootstrapped}
		if c.condition != "" {
			cluster.Status.Conditions = []metav1.Condition{{
				Type: v1alpha1.EtcdQuorum, Status: c.condition, Reason: c.reason,
				LastTransitionTime: metav1.NewTime(now.Add(-c.age)),
			}}
		}
		s := &State{Cluster: cluster, EtcdErr: c.err}
		if got := s.QuorumLost(now); got != c.want {
			t.Errorf("%s: QuorumLost() %v, want %v", name, got, c.want)
		}
	}
}

// TestInitialMembersRefuse checks that an etcd that is not bootstrapped according to the status has lost its quorum if
// most initial members refuse to start, for example because all objects and volumes were restored without the status.
func TestInitialMembersRefuse(t *testing.T) {
	for refusing, want := range []bool{false, false, true, true} {
		cluster := demo()
		cluster.Status.Membership = &v1alpha1.Membership{InitialMembers: []string{"demo-0", "demo-1", "demo-2"}}
		s := &State{Cluster: cluster, EtcdErr: etcd.ErrUnreachable}
		for i, name := range cluster.Status.Membership.InitialMembers {
			pod := memberPod(name, "")
			if i < refusing {
				pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
					Name:  desired.ServerContainer,
					State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: desired.LostDataExitCode}},
				}}
			}
			s.Pods = append(s.Pods, pod)
			if got := s.MemberRefuses(etcd.Member{Name: name}); got != (i < refusing) {
				t.Errorf("MemberRefuses(%s): %v with %d refusing", name, got, refusing)
			}
		}
		if got := s.QuorumLost(now); got != want {
			t.Errorf("%d of 3 refuse: QuorumLost() %v, want %v", refusing, got, want)
		}
	}
}

func TestMemberLost(t *testing.T) {
	lost := etcd.Member{Name: "demo-0"}
	for name, c := range map[string]struct {
		member    etcd.Member
		unhealthy time.Duration
		hash      string // hash of the pod of the healthy member
		healthy   bool   // the other member is healthy
		want      bool
	}{
		"healthy":                    {etcd.Member{Name: "demo-0", Healthy: true}, time.Hour, "a", true, false},
		"learner":                    {etcd.Member{Name: "demo-0", Learner: true}, time.Hour, "a", true, false},
		"unhealthy for 5 minutes":    {lost, 5 * time.Minute, "a", true, false},
		"unhealthy for longer":       {lost, 5*time.Minute + time.Second, "a", true, true},
		"other template is healthy":  {lost, time.Hour, "b", true, false},
		"same template is unhealthy": {lost, time.Hour, "a", false, false},
	} {
		cluster := demo()
		cluster.Status.Members = []v1alpha1.MemberStatus{
			{Name: "demo-0", UnhealthySince: &metav1.Time{Time: now.Add(-c.unhealthy)}},
		}
		s := &State{
			Cluster: cluster, Pods: []corev1.Pod{memberPod("demo-0", "a"), memberPod("demo-1", c.hash)},
			Members: []etcd.Member{c.member, {Name: "demo-1", Healthy: c.healthy}},
		}
		if got := s.MemberLost(c.member, now); got != c.want {
			t.Errorf("%s: MemberLost() %v, want %v", name, got, c.want)
		}
	}
}

func TestUnhealthyMemberIsReplacedAfterSpec(t *testing.T) {
	cluster := demo()
	cluster.Spec.Etcd.Embedded = &v1alpha1.EmbeddedEtcd{ReplaceUnhealthyAfter: &metav1.Duration{Duration: time.Hour}}
	s := &State{
		Cluster: cluster, Pods: []corev1.Pod{memberPod("demo-0", "a"), memberPod("demo-1", "a")},
		Members: []etcd.Member{{Name: "demo-0"}, {Name: "demo-1", Healthy: true}},
	}
	for unhealthy, want := range map[time.Duration]bool{59 * time.Minute: false, 61 * time.Minute: true} {
		cluster.Status.Members = []v1alpha1.MemberStatus{{
			Name: "demo-0", UnhealthySince: &metav1.Time{Time: now.Add(-unhealthy)},
		}}
		if got := s.MemberLost(s.Members[0], now); got != want {
			t.Errorf("unhealthy for %v: MemberLost() %v, want %v", unhealthy, got, want)
		}
	}
}

func TestDamagedMemberIsReplacedAtOnce(t *testing.T) {
	damaged := &corev1.ContainerStateTerminated{ExitCode: desired.DamagedDataExitCode}
	for name, c := range map[string]struct {
		container corev1.ContainerStatus
		hash      string // hash of the pod of the healthy member
		want      bool
	}{
		"exited": {
			corev1.ContainerStatus{Name: "apiserver", State: corev1.ContainerState{Terminated: damaged}}, "a", true,
		},
		"waits for a restart": {
			corev1.ContainerStatus{Name: "apiserver", LastTerminationState: corev1.ContainerState{Terminated: damaged}},
			"a", true,
		},
		"has recovered": {
			corev1.ContainerStatus{Name: "apiserver", Ready: true,
				LastTerminationState: corev1.ContainerState{Terminated: damaged}}, "a", false,
		},
		"another container": {
			corev1.ContainerStatus{Name: "sidecar", State: corev1.ContainerState{Terminated: damaged}}, "a", false,
		},
		"another exit code": {
			corev1.ContainerStatus{Name: "apiserver",
				State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1}}}, "a", false,
		},
		"other template is ready": {
			corev1.ContainerStatus{Name: "apiserver", State: corev1.ContainerState{Terminated: damaged}}, "b", false,
		},
	} {
		pod := memberPod("demo-0", "a")
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{c.container}
		s := &State{
			Cluster: demo(), Pods: []corev1.Pod{pod, memberPod("demo-1", c.hash)},
			Members: []etcd.Member{{Name: "demo-0"}, {Name: "demo-1", Healthy: true}},
		}
		if got := s.MemberLost(s.Members[0], now); got != c.want {
			t.Errorf("%s: MemberLost() %v, want %v", name, got, c.want)
		}
	}
}

// TestMemberWithLostWritesIsKept checks that a member that has acknowledged writes which the others lack is replaced
// only on request, regardless of how long it is unhealthy and how its pod ends later.
func TestMemberWithLostWritesIsKept(t *testing.T) {
	exited := func(code int32) corev1.ContainerStatus {
		return corev1.ContainerStatus{
			Name: "apiserver", State: corev1.ContainerState{
				Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Message: "revision 7"},
			},
		}
	}
	for name, c := range map[string]struct {
		container      corev1.ContainerStatus
		annotation     string // annotation of the claim
		healthy        bool
		request        string
		kept, replaced bool
	}{
		"exited":        {container: exited(desired.LostWritesExitCode), kept: true},
		"has a new pod": {annotation: "revision 7", kept: true},
		"damaged later": {
			container: exited(desired.DamagedDataExitCode), annotation: "revision 7", kept: true,
		},
		"refuses later":               {container: exited(desired.LostDataExitCode), annotation: "revision 7", kept: true},
		"another member is requested": {container: exited(desired.LostWritesExitCode), request: "demo-1", kept: true},
		"its replacement is requested": {
			container: exited(desired.LostWritesExitCode), request: "demo-1, demo-0", replaced: true,
		},
		"runs again, after a recovery":   {annotation: "revision 7", healthy: true},
		"unhealthy for another reason":   {replaced: true},
		"requested for no lost writes":   {healthy: true, request: "demo-0"},
		"damaged, without acknowledging": {container: exited(desired.DamagedDataExitCode), replaced: true},
	} {
		pod := memberPod("demo-0", "a")
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{c.container}
		claim := corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "demo-0"}}
		cluster := demo()
		cluster.Annotations = map[string]string{v1alpha1.ReplaceMembersAnnotation: c.request}
		if c.annotation != "" {
			claim.Annotations = map[string]string{desired.LostWritesAnnotation: c.annotation}
		}
		cluster.Status.Members = []v1alpha1.MemberStatus{{
			Name: "demo-0", UnhealthySince: &metav1.Time{Time: now.Add(-24 * time.Hour)},
		}}
		s := &State{
			Cluster: cluster, Pods: []corev1.Pod{pod, memberPod("demo-1", "a")}, Claims: []corev1.PersistentVolumeClaim{claim},
			Members: []etcd.Member{{Name: "demo-0", Healthy: c.healthy}, {Name: "demo-1", Healthy: true}},
		}
		m := s.Members[0]
		if kept, replaced := s.KeepsWrites(m), s.MemberLost(m, now) ||
			s.MemberRefuses(m); kept != c.kept || replaced != c.replaced {
			t.Errorf("%s: kept %v, replaced %v, want %v, %v", name, kept, replaced, c.kept, c.replaced)
		}
	}
}

func TestReadyReplicas(t *testing.T) {
	terminating, unready := memberPod("demo-1", ""), memberPod("demo-2", "")
	terminating.DeletionTimestamp = &metav1.Time{Time: now}
	unready.Status.Conditions[0].Status = corev1.ConditionFalse
	s := &State{Pods: []corev1.Pod{memberPod("demo-0", ""), terminating, unready, {}}}
	if got := s.ReadyReplicas(); got != 1 {
		t.Errorf("ReadyReplicas(): %d, want 1", got)
	}
}

func TestVersionsWithoutAReadyReplica(t *testing.T) {
	unready := memberPod("demo-0", "")
	unready.Status.Conditions[0].Status = corev1.ConditionFalse
	s := &State{Cluster: demo(), Pods: []corev1.Pod{unready}}
	if got, err := s.Versions(t.Context(), nil, "demo.ns.svc"); got != (Versions{}) || err != nil {
		t.Errorf("Versions(): %v, error %v, want neither", got, err)
	}
}

// TestRunsMember checks that a member's pod is recognized without its labels. It would otherwise be deleted as a
// surplus server.
func TestRunsMember(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "demo-0"}}
	if RunsMember(pod) {
		t.Error("a pod without a volume is a member")
	}
	pod.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "demo-0"},
	}}}
	if !RunsMember(pod) {
		t.Error("a pod with its member's volume is no member")
	}
}

// TestMemberID checks that annotations and the status have member IDs in etcdctl's notation (hexadecimal).
func TestMemberID(t *testing.T) {
	const id = uint64(0x8e9e05c52164694d)
	if got := MemberID(id); got != "8e9e05c52164694d" || ParseMemberID(got) != id {
		t.Errorf("got %s, parsed %x", got, ParseMemberID(got))
	}
	for _, text := range []string{"", "demo-0", "0x8e9e05c52164694d", "-1", "18e9e05c52164694d"} {
		if got := ParseMemberID(text); got != 0 {
			t.Errorf("%q: got %x, want 0", text, got)
		}
	}
}

// TestCopiesOfState checks that the reads of etcd's state do not change the state that was read before.
func TestCopiesOfState(t *testing.T) {
	before := &State{Cluster: demo(), EtcdErr: etcd.ErrUnreachable}
	after := before.WithSurvivors([]etcd.Survivor{{}}).WithAcknowledged(map[uint64]etcd.Acknowledged{1: {}})
	if before.Survivors != nil || before.Acknowledged != nil {
		t.Errorf("the state before was changed: %+v", before)
	}
	if len(after.Survivors) != 1 || len(after.Acknowledged) != 1 || after.Cluster != before.Cluster ||
		!after.Unreachable() {
		t.Errorf("got %+v", after)
	}
}

// TestHasRun checks that a container that has started counts, also while it waits for a restart, and that a container
// that has never started does not.
func TestHasRun(t *testing.T) {
	waiting := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}
	terminated := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1}}
	for name, c := range map[string]struct {
		status corev1.ContainerStatus
		want   bool
	}{
		"waiting":    {corev1.ContainerStatus{State: waiting}, false},
		"running":    {corev1.ContainerStatus{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}, true},
		"ended":      {corev1.ContainerStatus{State: terminated}, true},
		"restarting": {corev1.ContainerStatus{State: waiting, LastTerminationState: terminated}, true},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{c.status}}}
			if got := HasRun(pod); got != c.want {
				t.Errorf("HasRun() is %v, want %v", got, c.want)
			}
		})
	}
	if HasRun(&corev1.Pod{}) {
		t.Error("a pod without status has run")
	}
}
