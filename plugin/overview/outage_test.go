package overview

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
)

// outage is a cluster of three members during an outage. Each function on it changes one aspect.
type outage struct {
	cluster *v1alpha1.ApiServerCluster
	in      Input
}

func newOutage(changes ...func(*outage)) Input {
	o := &outage{cluster: settled()}
	for i, role := range []string{"leader", "voter", "voter"} {
		name := []string{"demo-0", "demo-1", "demo-2"}[i]
		o.cluster.Status.Members = append(o.cluster.Status.Members,
			v1alpha1.MemberStatus{Name: name, Role: role, Ready: true})
		pod := corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{desired.RoleLabel: desired.RoleMember}},
		}
		pod.Status.Phase = corev1.PodRunning
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		o.in.Pods = append(o.in.Pods, pod)
	}
	o.in.Cluster, o.in.Now, o.in.Failures, o.in.BackupsUnknown = o.cluster, now, map[string]string{}, true
	for _, change := range changes {
		change(o)
	}
	return o.in
}

// hangs makes an API server not respond to the command. The operator has not noticed that yet.
func hangs(i int) func(*outage) {
	return func(o *outage) { o.in.Failures[o.in.Pods[i].Name] = "does not respond within 2s" }
}

// unhealthy makes the operator observe that a member is unhealthy.
func unhealthy(i int, age time.Duration) func(*outage) {
	return func(o *outage) {
		m := &o.cluster.Status.Members[i]
		m.Ready, m.UnhealthySince = false, &metav1.Time{Time: now.Add(-age)}
		setIn(v1alpha1.EtcdQuorum, metav1.ConditionTrue, v1alpha1.ReasonMembersUnhealthy)(o)
		setIn(v1alpha1.Progressing, metav1.ConditionTrue, v1alpha1.ReasonWaitingForReplicas)(o)
	}
}

// exited makes the container of a member exit with a code and a message, and wait for its restart.
func exited(i int, code int32, message string) func(*outage) {
	return func(o *outage) {
		o.in.Pods[i].Status.Conditions = nil
		o.in.Pods[i].Status.ContainerStatuses = []corev1.ContainerStatus{{
			Name:  desired.ServerContainer,
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}},
			LastTerminationState: corev1.ContainerState{
				Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Message: message},
			},
		}}
	}
}

func setIn(kind string, status metav1.ConditionStatus, reason string) func(*outage) {
	return func(o *outage) { set(condition(kind, status, reason, "message of the operator"))(o.cluster) }
}

// allUnreachable sets the status that the operator stores in the first seconds after etcd has lost its quorum: no
// member is ready.
func allUnreachable(o *outage) {
	for i := range o.cluster.Status.Members {
		o.cluster.Status.Members[i].Ready, o.cluster.Status.Members[i].UnhealthySince = false, &metav1.Time{Time: now}
		o.cluster.Status.Members[i].Role = "voter"
	}
	setIn(v1alpha1.EtcdQuorum, metav1.ConditionUnknown, v1alpha1.ReasonEtcdUnreachable)(o)
	setIn(v1alpha1.Progressing, metav1.ConditionTrue, v1alpha1.ReasonWaiting)(o)
	o.cluster.Status.ReadyReplicas = 2
}

func quorumLost(o *outage) {
	allUnreachable(o)
	setIn(v1alpha1.EtcdQuorum, metav1.ConditionFalse, v1alpha1.ReasonQuorumLost)(o)
	setIn(v1alpha1.Available, metav1.ConditionFalse, v1alpha1.ReasonQuorumLost)(o)
	setIn(v1alpha1.Degraded, metav1.ConditionTrue, v1alpha1.ReasonQuorumLost)(o)
}

// TestOutage checks that the parts of an overview agree in each stage of an outage: the health, the number of ready
// members, the members themselves, the alerts, and the next step, which names the same member and the same commands as
// the runbook.
func TestOutage(t *testing.T) {
	const deletion = "kubectl delete pvc/demo-1 pod/demo-1 --wait=false"
	for name, test := range map[string]struct {
		changes []func(*outage)
		health  Health
		ready   int32
		down    string // members with the alert QuorateMemberDown
		text    string
		command string
	}{
		"healthy": {nil, Healthy, 3, "", "Nothing to do", ""},
		"the operator has noticed nothing yet": {[]func(*outage){hangs(1)}, Degraded, 2, "demo-1",
			"demo-1 does not respond within 2s", "kubectl describe pod demo-1"},
		"two members hang, and the operator has noticed nothing yet": {[]func(*outage){hangs(0), hangs(1)}, Degraded,
			1, "demo-0 demo-1",
			"demo-0 does not respond within 2s, demo-1 does not respond within 2s", "kubectl describe pod demo-0"},
		"a member is unhealthy": {[]func(*outage){unhealthy(1, 5*time.Second), hangs(1)}, Degraded, 2, "demo-1",
			"demo-1 does not respond", "kubectl describe pod demo-1"},
		"a member is unhealthy for a minute": {[]func(*outage){unhealthy(1, time.Minute), hangs(1)}, Degraded, 2, "demo-1",
			"replaces a member that is unhealthy for 5m0s", deletion},
		"a member on a lost node": {[]func(*outage){unhealthy(1, 5*time.Second), func(o *outage) {
			o.in.Pods[1].Status = corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{{
				Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable,
				Message: "volume node affinity conflict",
			}}}
		}}, Degraded, 2, "demo-1", "demo-1 cannot be scheduled: volume node affinity conflict", deletion},
		"a member refuses its volume": {[]func(*outage){exited(1, desired.LostDataExitCode, "no write-ahead log")},
			Degraded, 2, "demo-1",
			"demo-1 does not start, because its volume does not have the data of its etcd member (exit code 4). The operator " +
				"replaces it", "kubectl quorate wait demo"},
		"a member crashes": {[]func(*outage){unhealthy(1, time.Hour), exited(1, 1, "first\nunknown flag: --x")}, Degraded,
			2, "demo-1", "demo-1 exits again and again with code 1: unknown flag: --x", "kubectl logs demo-1 --tail=100"},
		"an image does not exist": {[]func(*outage){unhealthy(1, time.Hour), func(o *outage) {
			exited(1, 0, "")(o)
			o.in.Pods[1].Status.ContainerStatuses[0].State.Waiting = &corev1.ContainerStateWaiting{
				Reason: "ErrImagePull", Message: "not found",
			}
		}}, Degraded, 2, "demo-1", "demo-1 cannot start: ErrImagePull: not found", "kubectl describe pod demo-1"},
		"etcd does not respond to the operator": {[]func(*outage){allUnreachable, hangs(0), hangs(1)}, Degraded,
			0, "demo-0 demo-1 demo-2",
			"etcd does not respond to the operator: demo-0 does not respond within 2s, demo-1 does not respond within 2s",
			"kubectl describe pod demo-0"},
		"the quorum is lost": {[]func(*outage){quorumLost, hangs(0), hangs(1)}, Unavailable, 0, "demo-0 demo-1 demo-2",
			"etcd has no quorum: demo-0 does not respond within 2s, demo-1 does not respond within 2s. Restore",
			"kubectl quorate recover demo"},
		"the quorum is lost with the volumes": {[]func(*outage){quorumLost, exited(0, 4, ""), exited(1, 4, "")},
			Unavailable, 0, "demo-0 demo-1 demo-2", "etcd has no quorum: demo-0 does not start, because its volume",
			"kubectl quorate recover demo"},
		"a rollout": {[]func(*outage){
			unhealthy(1, time.Second), setIn(v1alpha1.Progressing, metav1.ConditionTrue, v1alpha1.ReasonReconciling),
		},
			Progressing, 2, "demo-1", "message of the operator", "kubectl quorate wait demo"},
		"the pods cannot be read": {
			[]func(*outage){func(o *outage) { o.in.Pods, o.in.PodsUnknown = nil, true }}, Healthy, 3, "", "Nothing to do", "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := Build(newOutage(test.changes...))
			if o.Health != test.health || o.Ready != test.ready {
				t.Errorf("got %s, %d ready, want %s, %d", o.Health, o.Ready, test.health, test.ready)
			}
			if !strings.Contains(o.Next.Text, test.text) || o.Next.Command != test.command {
				t.Errorf("got next step %+v, want %q and %q", o.Next, test.text, test.command)
			}
			checkMembers(t, o, strings.Fields(test.down))
		})
	}
}

// checkMembers checks that exactly the members that are not ready have a reason and an alert that names them.
func checkMembers(t *testing.T, o *Overview, down []string) {
	t.Helper()
	var alerted []string
	for _, a := range o.Alerts {
		if a.Name == "QuorateMemberDown" {
			alerted = append(alerted, a.Member)
			if !strings.HasPrefix(a.Message, a.Member+" ") || a.Message == a.Member+" " {
				t.Errorf("alert of %q: %q", a.Member, a.Message)
			}
		}
	}
	if !slices.Equal(alerted, down) {
		t.Errorf("got alerts of %q, want %q", alerted, down)
	}
	ready := int32(0)
	for _, r := range o.Replicas {
		if r.Ready {
			ready++
		}
		if r.Ready != (r.Problem == "") || r.Ready == slices.Contains(down, r.Name) {
			t.Errorf("%s: ready %t, problem %q, alerts of %q", r.Name, r.Ready, r.Problem, down)
		}
	}
	if ready != o.Ready {
		t.Errorf("the heading says %d are ready, the members %d", o.Ready, ready)
	}
}

// hanging is an API server of the hosting cluster that responds only to requests for the cluster itself.
type hanging struct {
	client.Reader
	cluster *v1alpha1.ApiServerCluster
}

func (h hanging) Get(_ context.Context, _ client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	h.cluster.DeepCopyInto(into.(*v1alpha1.ApiServerCluster))
	return nil
}

func (h hanging) List(ctx context.Context, _ client.ObjectList, _ ...client.ListOption) error {
	<-ctx.Done()
	return ctx.Err()
}

// TestSourcesHaveDeadlines checks that sources that do not respond delay an overview by only one deadline in total, and
// that the overview reports them as unknown rather than missing.
func TestSourcesHaveDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cluster := newOutage().Cluster
		began := time.Now()
		in, err := Collect(t.Context(), hanging{cluster: cluster}, client.ObjectKeyFromObject(cluster), now)
		if err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took != sourceTimeout {
			t.Errorf("took %s, want %s", took, sourceTimeout)
		}
		o := Build(in)
		if len(o.Notes) != 5 ||
			!strings.Contains(o.Notes[0],
				"Pods are not known: the API server of the hosting cluster did not respond within 2s") {
			t.Errorf("got notes %q", o.Notes)
		}
		if o.Replicas[0].Status != "Unknown" || o.Ready != 3 {
			t.Errorf("got %+v", o.Replicas[0])
		}
		if strings.Contains(o.Next.Text, "backup") {
			t.Errorf("backups are not known, but the next step is %q", o.Next.Text)
		}
	})
}

// TestInterruptedCollect checks that an interrupt is not reported as a missing response.
func TestInterruptedCollect(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := within(ctx, time.Hour, func(ctx context.Context) error { return ctx.Err() })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
