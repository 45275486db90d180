package observed

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"quorate.dev/apiserver/config"
	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/etcd"
)

// threeMembers returns the state of a cluster whose members are healthy, have compared their logs and run in ready
// pods. The claim of demo-2 is annotated with the runs of the others.
func threeMembers() *State {
	s := &State{Cluster: &v1alpha1.ApiServerCluster{ObjectMeta: metav1.ObjectMeta{Name: "demo"}}}
	for _, name := range []string{"demo-0", "demo-1", "demo-2"} {
		s.Members = append(s.Members, etcd.Member{
			Name: name, Healthy: true, Started: true, Report: config.MemberReport{Compared: true, Run: "p-" + name},
		})
		s.Claims = append(s.Claims, corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}})
		s.Pods = append(s.Pods, corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("u-" + name)},
			Status: corev1.PodStatus{
				Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
				ContainerStatuses: []corev1.ContainerStatus{{
					Name: desired.ServerContainer, Ready: true, ContainerID: "containerd://0123456789abcdef",
					State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
				}},
			},
		})
	}
	s.record()
	return s
}

// record annotates the claim of demo-2 as the operator does.
func (s *State) record() {
	if m := s.Member("demo-2"); s.Agrees(*m) {
		metav1.SetMetaDataAnnotation(&s.Claim("demo-2").ObjectMeta, desired.LastHealthyWithAnnotation, s.HealthyWith(*m))
	}
}

func (s *State) container(name string) *corev1.ContainerStatus {
	return &s.Pod(name).Status.ContainerStatuses[0]
}

func (s *State) unready(name string) {
	s.Pod(name).Status.Conditions[0].Status = corev1.ConditionFalse
	s.container(name).Ready = false
}

// TestUnproven: the volume of a voter that does not run need not be kept only if all other members have run without
// interruption since the voter was last known to agree with them.
func TestUnproven(t *testing.T) {
	for name, c := range map[string]struct {
		change func(s *State)
		want   string // the members that may have been put back
	}{
		"the others run": {func(*State) {}, ""},
		"a new pod":      {func(s *State) { s.Pod("demo-0").UID = "another" }, "demo-0"},
		"a restarted process that the kubelet has not reported": {
			func(s *State) { s.Members[0].Report.Run = "another" }, "demo-0",
		},
		"another member that does not respond": {func(s *State) { s.Members[0].Healthy = false }, ""},
		"no pod":                               {func(s *State) { s.Pods = s.Pods[1:] }, "demo-0"},
		"a restarted container": {func(s *State) {
			s.container("demo-1").RestartCount, s.container("demo-1").ContainerID = 1, "containerd://fedcba9876543210"
		}, "demo-1"},
		"a restarted container whose counter was lost": {
			func(s *State) { s.container("demo-1").ContainerID = "containerd://fedcba9876543210" }, "demo-1",
		},
		"a stopped container": {func(s *State) { s.container("demo-1").State = corev1.ContainerState{} }, "demo-1"},
		"a terminated pod":    {func(s *State) { s.Pod("demo-1").Status.Phase = corev1.PodFailed }, "demo-1"},
		"both restarted": {func(s *State) {
			s.Pod("demo-0").UID, s.Pod("demo-1").UID = "another", "yet another"
		}, "demo-0 and demo-1"},
		"not ready meanwhile": {func(s *State) { s.unready("demo-0") }, ""},
		"a new voter": {func(s *State) {
			s.Members = append(s.Members, etcd.Member{Name: "demo-3", Healthy: true})
		}, "demo-3"},
		"a learner": {
			func(s *State) { s.Members = append(s.Members, etcd.Member{Name: "demo-3", Learner: true}) }, "",
		},
		"a removed member":      {func(s *State) { s.Members = s.Members[1:] }, ""},
		"a removed and its pod": {func(s *State) { s.Members, s.Pods = s.Members[1:], s.Pods[1:] }, "demo-0"},
		"no annotation":         {func(s *State) { s.Claim("demo-2").Annotations = nil }, "demo-0 and demo-1"},
		"a restart that was seen": {func(s *State) {
			s.Pod("demo-0").UID = "another"
			s.record()
		}, ""},
		"a report that failed once": {func(s *State) {
			s.Members[0].Report.Run = ""
			s.record()
			s.Members[0].Report.Run = "p-demo-0"
		}, ""},
		"a restart before it was ready": {func(s *State) {
			s.Pod("demo-0").UID = "another"
			s.unready("demo-0")
			s.record()
		}, "demo-0"},
		"a restart that the voter has not compared": {func(s *State) {
			s.Pod("demo-0").UID = "another"
			s.Members[2].Report.Compared = false
			s.record()
		}, "demo-0"},
		"a restart while the voter was not ready": {func(s *State) {
			s.Pod("demo-0").UID = "another"
			s.unready("demo-2")
			s.record()
		}, "demo-0"},
	} {
		s := threeMembers()
		c.change(s)
		m := s.Member("demo-2")
		m.Healthy = false
		got := s.Unproven(*m)
		if c.want == "" && got != "" || !strings.Contains(got, c.want+" had not run") && c.want != "" {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
	s := threeMembers()
	s.Pod("demo-0").UID = "another"
	if got := s.Unproven(*s.Member("demo-2")); got != "" {
		t.Errorf("a healthy voter: got %q", got)
	}
	s.Member("demo-2").Healthy, s.Member("demo-2").Learner = false, true
	if got := s.Unproven(*s.Member("demo-2")); got != "" {
		t.Errorf("a learner: got %q", got)
	}
}

// TestUnrecorded checks for which voters a deletion of the pod has to wait: until the runs of the other members are in
// the annotation of the voter's claim, which would otherwise be kept without need.
func TestUnrecorded(t *testing.T) {
	restarted := func(s *State) { s.Pod("demo-0").UID = "another" }
	for name, c := range map[string]struct {
		change func(s *State)
		want   bool
	}{
		"recorded":              {func(*State) {}, false},
		"another has restarted": {restarted, true},
		"another has restarted, and was recorded": {func(s *State) {
			restarted(s)
			s.record()
		}, false},
		"another has restarted, and is not ready": {func(s *State) {
			restarted(s)
			s.unready("demo-0")
		}, false},
		"another has restarted, and its member is not healthy": {func(s *State) {
			restarted(s)
			s.Members[0].Healthy = false
		}, false},
		"it is not ready itself": {func(s *State) {
			restarted(s)
			s.unready("demo-2")
		}, false},
		"it is a learner": {func(s *State) {
			restarted(s)
			s.Members[2].Learner = true
		}, false},
		"its release reports no runs": {func(s *State) {
			restarted(s)
			s.Members[2].Report.Run = ""
		}, false},
		"a new voter": {func(s *State) {
			s.Members = append(s.Members, etcd.Member{Name: "demo-3", Healthy: true, Report: config.MemberReport{Run: "p"}})
			pod := *s.Pod("demo-0")
			pod.Name = "demo-3"
			s.Pods = append(s.Pods, pod)
		}, true},
	} {
		s := threeMembers()
		c.change(s)
		if got := s.Unrecorded(*s.Member("demo-2")); got != c.want {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}

// TestReleasesWithoutRuns checks that claims of members whose releases report no runs can still be deleted: nothing
// would ever prove that they are not needed.
func TestReleasesWithoutRuns(t *testing.T) {
	s := threeMembers()
	for i := range s.Members {
		s.Members[i].Report.Run = ""
	}
	s.Pod("demo-0").UID, s.Members[2].Healthy = "another", false
	if got := s.Unproven(s.Members[2]); got != "" {
		t.Errorf("without runs: got %q", got)
	}
	s.Members[1].Report.Run = "p-demo-1"
	if got := s.Unproven(s.Members[2]); got == "" {
		t.Error("after the upgrade of one member: the claim is not kept")
	}
}
