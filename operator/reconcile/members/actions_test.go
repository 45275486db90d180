package members

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/etcd"
	"quorate.dev/operator/membership"
	"quorate.dev/operator/observed"
	"quorate.dev/operator/pki"
	"quorate.dev/operator/reconcile/credentials"
	"quorate.dev/operator/reconcile/owned"
	"quorate.dev/operator/reconcile/owned/ownedtest"
)

// issued returns credentials with which the operator can connect to members.
func issued(t *testing.T) credentials.Set {
	t.Helper()
	authority, err := pki.NewAuthority("demo", 24*time.Hour, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := authority.Issue(pki.Leaf{CommonName: "operator", Client: true, Lifetime: time.Hour}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return credentials.Set{
		Bundles: map[string]pki.Bundle{desired.EtcdClientDomain: {Signer: authority}},
		Trusted: authority.Certificate, ServerName: "demo.ns.svc",
		Leaves: map[string]pki.Pair{desired.OperatorEtcdSecret: leaf, desired.AdminSecret: leaf, desired.ServingSecret: leaf},
	}
}

// takeActions observes the stored cluster and takes actions.
func takeActions(t *testing.T, h *ownedtest.Host) (Result, error) {
	t.Helper()
	observation, err := Observe(t.Context(), h.Objects, h.Cluster(), "quorate:1", ownedtest.Now(), ownedtest.Now())
	h.Must(err)
	pool := etcd.NewPool()
	if observation, err = ReadMembers(t.Context(), pool, observation, credentials.Set{}, ownedtest.Now()); err != nil {
		return Result{}, err
	}
	steps := Steps{Objects: h.Objects, Pool: pool, Clock: clocktesting.NewFakeClock(ownedtest.Now())}
	return steps.TakeActions(t.Context(), Input{Observation: observation, Now: ownedtest.Now()})
}

// TestStart follows a new cluster until it waits for its members: the initial members are stored first, then they get
// claims and pods.
func TestStart(t *testing.T) {
	h := ownedtest.NewHost(t, ownedtest.NewCluster())
	var kinds []membership.Kind
	for range 10 {
		result, err := takeActions(t, h)
		h.Must(err)
		if kind := result.Action.Kind; len(kinds) == 0 || kinds[len(kinds)-1] != kind {
			kinds = append(kinds, kind)
		}
	}
	if want := kinds[len(kinds)-1]; want != membership.Wait {
		t.Errorf("actions %v", kinds)
	}
	names := h.Names()
	for i := range 3 {
		for _, kind := range []string{"Pod", "PersistentVolumeClaim"} {
			if name := fmt.Sprintf("%s demo-%d", kind, i); !slices.Contains(names, name) {
				t.Errorf("%s is missing in %v", name, names)
			}
		}
	}
	if m := h.Cluster().Status.Membership; !slices.Equal(m.InitialMembers, []string{"demo-0", "demo-1", "demo-2"}) ||
		m.NextOrdinal != 3 {
		t.Errorf("intent %+v", m)
	}
	if events := strings.Join(h.Events(), "\n"); !strings.Contains(events, "Normal BootstrappingEtcd") ||
		strings.Count(events, "SuccessfulCreate") != 6 {
		t.Errorf("events %q", events)
	}
}

// TestServers checks that API servers with an external etcd have no claims, and that they are deleted with the
// replicas.
func TestServers(t *testing.T) {
	h := ownedtest.NewHost(t, ownedtest.NewCluster(func(c *v1alpha1.ApiServerCluster) {
		c.Spec.Etcd.External = &v1alpha1.ExternalEtcd{Endpoints: []string{"https://etcd:2379"}}
	}))
	for range 5 {
		_, err := takeActions(t, h)
		h.Must(err)
	}
	pods := len(h.Names())
	none := int32(0)
	ownedtest.Change(h, "demo", &v1alpha1.ApiServerCluster{}, func(c *v1alpha1.ApiServerCluster) {
		c.Spec.Replicas = &none
	})
	for range 5 {
		_, err := takeActions(t, h)
		h.Must(err)
	}
	if pods == 0 || len(h.Names()) != 0 {
		t.Errorf("%d pods, then %v", pods, h.Names())
	}
}

// TestOldObservation checks that no action begins on an observation that is too old, and that an observation that has
// become old during earlier steps is read again.
func TestOldObservation(t *testing.T) {
	h := ownedtest.NewHost(t, ownedtest.NewCluster())
	clock := clocktesting.NewFakeClock(ownedtest.Now())
	steps := Steps{Objects: h.Objects, Pool: etcd.NewPool(), Clock: clock}
	stale := func() Input {
		return Input{
			Observation: Observation{State: &observed.State{Cluster: h.Cluster(), Image: "quorate:1",
				EtcdErr: etcd.ErrUnreachable}, At: ownedtest.Now()}, Now: ownedtest.Now(),
		}
	}
	clock.Step(time.Minute)
	if result, err := steps.TakeActions(t.Context(), stale()); err != nil || !result.At.Equal(clock.Now()) {
		t.Errorf("observed at %s, %v", result.At, err)
	}
	h.Refuse = func(request string) error {
		if strings.HasPrefix(request, "list") {
			clock.Step(ActionDeadline + time.Second)
		}
		return nil
	}
	h.Delete("demo", &v1alpha1.ApiServerCluster{})
	h.CreateAll(ownedtest.NewCluster())
	if _, err := steps.TakeActions(t.Context(), stale()); !owned.Stale(err) {
		t.Errorf("an action on an old observation: %v", err)
	}
	h.Refuse = func(string) error { return ownedtest.ErrUnavailable }
	if _, err := steps.TakeActions(t.Context(), stale()); !errors.Is(err, ownedtest.ErrUnavailable) {
		t.Errorf("an observation that cannot be repeated: %v", err)
	}
}

// TestFailedAction checks that the error of an action ends the step and is returned.
func TestFailedAction(t *testing.T) {
	for _, failing := range []string{"status", "create PersistentVolumeClaim", "create Pod"} {
		h := ownedtest.NewHost(t, ownedtest.NewCluster())
		h.Refuse = func(request string) error {
			if strings.HasPrefix(request, failing) {
				return ownedtest.ErrUnavailable
			}
			return nil
		}
		var err error
		for range 4 {
			if _, err = takeActions(t, h); err != nil {
				break
			}
		}
		if !errors.Is(err, ownedtest.ErrUnavailable) {
			t.Errorf("%s: %v", failing, err)
		}
	}
}

// TestActions checks what single actions write.
func TestActions(t *testing.T) {
	recovering := func(c *v1alpha1.ApiServerCluster) {
		c.Status.Recovery = &v1alpha1.RecoveryStatus{Stage: v1alpha1.RecoveryStarting}
	}
	requested := func(c *v1alpha1.ApiServerCluster) { c.Spec.Recovery = &v1alpha1.Recovery{RequestID: "1"} }
	kept := func(h *ownedtest.Host) string {
		claim := &corev1.PersistentVolumeClaim{}
		if !h.Exists("demo-0", claim) {
			return "deleted"
		}
		return fmt.Sprint(desired.Owns(h.Cluster(), claim), claim.Annotations[desired.UnprovenAnnotation])
	}
	for name, test := range map[string]struct {
		change func(*v1alpha1.ApiServerCluster)
		action membership.Action
		got    func(*ownedtest.Host) string
		want   string
		event  string
	}{
		"bootstrapped": {recovering, membership.Action{Kind: membership.Bootstrapped}, func(h *ownedtest.Host) string {
			s := h.Cluster().Status
			return fmt.Sprint(s.Membership.Bootstrapped, s.Recovery.Stage)
		}, "trueCompleted", "EtcdBootstrapped"},
		"join": {recovering, membership.Action{Kind: membership.StartJoin, Name: "demo-4"}, func(h *ownedtest.Host) string {
			m := h.Cluster().Status.Membership
			return fmt.Sprint(m.JoiningMember, " ", m.NextOrdinal)
		}, "demo-4 5", "MemberJoining"},
		"joined": {func(c *v1alpha1.ApiServerCluster) {
			c.Status.Membership = &v1alpha1.Membership{JoiningMember: "demo-4"}
		}, membership.Action{Kind: membership.FinishJoin}, func(h *ownedtest.Host) string {
			return h.Cluster().Status.Membership.JoiningMember
		}, "", "MemberJoinFinished"},
		"recovery": {requested, membership.Action{Kind: membership.DeclineRecovery}, func(h *ownedtest.Host) string {
			return string(h.Cluster().Status.Recovery.Stage)
		}, string(v1alpha1.RecoveryNotNeeded), "RecoveryNotNeeded"},
		"kept claim": {
			recovering, membership.Action{Kind: membership.KeepClaim, Name: "demo-0", Reason: " not compared"}, kept,
			"true not compared", "Warning VolumeNotCompared",
		},
		"deleted claim": {
			recovering, membership.Action{Kind: membership.DeleteClaim, Name: "demo-0"}, kept, "deleted", "SuccessfulDelete",
		},
		"other claim": {recovering, membership.Action{Kind: membership.ReleaseClaim, Name: "demo-1"}, kept, "true", ""},
		"deleted pod": {recovering, membership.Action{
			Kind: membership.DeletePod, Name: "demo-0",
		}, func(h *ownedtest.Host) string {
			return fmt.Sprint(h.Exists("demo-0", &corev1.Pod{}))
		}, "false", "SuccessfulDelete"},
		"absent pod": {
			recovering, membership.Action{Kind: membership.DeletePod, Name: "demo-1"}, kept, "true", "SuccessfulDelete",
		},
		"server": {recovering, membership.Action{
			Kind: membership.CreateServer, Name: "demo-5",
		}, func(h *ownedtest.Host) string {
			pod := &corev1.Pod{}
			h.Read("demo-5", pod)
			return fmt.Sprint(observed.RunsMember(pod),
				strings.Contains(strings.Join(pod.Spec.Containers[0].Args, " "), "demo-0.demo-members"))
		}, "false true", "SuccessfulCreate"},
		"failed defragmentation": {func(c *v1alpha1.ApiServerCluster) {
			c.Status.Defragmentation = &v1alpha1.DefragmentationStatus{Member: "demo-0", Failures: 1}
		}, membership.Action{
			Kind: membership.FinishDefragmentation, Name: "demo-0", Reason: "disk full",
		}, func(h *ownedtest.Host) string {
			d := h.Cluster().Status.Defragmentation
			return fmt.Sprint(d.Failures, d.Member, d.Message)
		}, "2disk full", "Warning DefragmentationFailed"},
		"defragmented": {func(c *v1alpha1.ApiServerCluster) {
			c.Status.Defragmentation = &v1alpha1.DefragmentationStatus{Member: "demo-0"}
			c.Status.Members = []v1alpha1.MemberStatus{{Name: "demo-0"}}
		}, membership.Action{Kind: membership.FinishDefragmentation, Name: "demo-0"}, func(h *ownedtest.Host) string {
			s := h.Cluster().Status
			return fmt.Sprint(s.Defragmentation == nil, s.Members[0].LastDefragmentTime != nil)
		}, "true true", "MemberDefragmented"},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := ownedtest.NewCluster(test.change)
			h := ownedtest.NewHost(t, cluster)
			h.Must(h.Create(t.Context(), cluster, desired.Claim(cluster, "demo-0")))
			h.Must(h.Create(t.Context(), cluster, &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "demo-0", Labels: desired.Labels(cluster)},
			}))
			state, err := observed.Read(t.Context(), h.API, h.Cluster(), "quorate:1")
			h.Must(err)
			state.Members = []etcd.Member{{Name: "demo-0", ID: 1}}
			x := Steps{Objects: h.Objects, Pool: etcd.NewPool()}.newExecutor(Input{
				Observation: Observation{State: state}, Now: ownedtest.Now(),
			})
			h.Must(x.execute(t.Context(), test.action))
			x.reportAction(t.Context(), test.action)
			if got := test.got(h); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
			if events := strings.Join(h.Events(), "\n"); !strings.Contains(events, test.event) ||
				test.event == "" && events != "" {
				t.Errorf("events %q, want %s", events, test.event)
			}
		})
	}
}

// TestRejectedChanges checks that a change that etcd does not accept is retried without an error, and that an unknown
// action is an error.
func TestRejectedChanges(t *testing.T) {
	h, c := ownedtest.NewHost(t, ownedtest.NewCluster()), issued(t)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	pool := etcd.NewPool()
	defer pool.Drop("ns/demo")
	members, err := pool.Get("ns/demo", []etcd.Endpoint{{Name: "demo-0", Address: "127.201.18.1"}},
		"2379", c.Etcd(h.Cluster()))
	h.Must(err)
	x := Steps{Objects: h.Objects, Pool: pool}.newExecutor(Input{
		Observation: Observation{State: &observed.State{Cluster: h.Cluster()}, Members: members},
	})
	for _, kind := range []membership.Kind{
		membership.AddLearner, membership.Promote, membership.MoveLeader, membership.RemoveMember,
	} {
		a := membership.Action{Kind: kind, Name: "demo-0", ID: 1, ToID: 2}
		err := x.execute(ctx, a)
		if x.result.Rejected = nil; !errors.Is(err, errRejected) ||
			x.actionFailed(ctx, a, err) != nil || x.result.Rejected == nil {
			t.Errorf("%s: %v", kind, err)
		}
	}
	if err := x.execute(ctx, membership.Action{Kind: "Nonsense"}); err == nil || errors.Is(err, errRejected) {
		t.Errorf("an unknown action: %v", err)
	}
}

// TestReadMembers checks that etcd that cannot be reached is an observation, and unusable credentials are an error.
func TestReadMembers(t *testing.T) {
	pod := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "demo-0", Labels: map[string]string{desired.RoleLabel: desired.RoleMember}},
	}
	pod.Status.PodIP = "127.201.18.2"
	external := ownedtest.NewCluster(func(c *v1alpha1.ApiServerCluster) {
		c.Spec.Etcd.External = &v1alpha1.ExternalEtcd{}
	})
	lost := ownedtest.NewCluster(ownedtest.Bootstrapped, func(c *v1alpha1.ApiServerCluster) {
		c.Status.Members = []v1alpha1.MemberStatus{{Name: "demo-0"}}
		c.Status.Conditions = []metav1.Condition{{
			Type: v1alpha1.EtcdQuorum, Status: metav1.ConditionFalse,
			LastTransitionTime: metav1.NewTime(ownedtest.Now().Add(-time.Hour)),
		}}
	})
	for name, test := range map[string]struct {
		state       *observed.State
		credentials credentials.Set
		err, etcd   bool
	}{
		"external": {&observed.State{Cluster: external}, credentials.Set{}, false, false},
		"no pod":   {&observed.State{Cluster: ownedtest.NewCluster()}, credentials.Set{}, false, true},
		"credentials": {
			&observed.State{Cluster: ownedtest.NewCluster(), Pods: []corev1.Pod{pod}}, credentials.Set{}, true, true,
		},
		"unreachable": {&observed.State{Cluster: lost, Pods: []corev1.Pod{pod}}, issued(t), false, true},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			pool := etcd.NewPool()
			defer pool.Drop("ns/demo")
			o, err := ReadMembers(ctx, pool, Observation{State: test.state}, test.credentials, ownedtest.Now())
			if (err != nil) != test.err || (o.State.EtcdErr != nil) != test.etcd {
				t.Errorf("%v, etcd: %v", err, o.State.EtcdErr)
			}
		})
	}
}

// TestWithoutEtcd checks of which API servers the state of their external etcd is read.
func TestWithoutEtcd(t *testing.T) {
	external := ownedtest.NewCluster(func(c *v1alpha1.ApiServerCluster) {
		c.Spec.Etcd.External = &v1alpha1.ExternalEtcd{}
	})
	starting := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "demo-0", CreationTimestamp: metav1.NewTime(ownedtest.Now())},
	}
	if names, due, err := WithoutEtcd(
		t.Context(), &observed.State{Cluster: ownedtest.NewCluster(), Pods: []corev1.Pod{starting}},
		issued(t), ownedtest.Now(),
	); names != nil || due != nil || err != nil {
		t.Errorf("own etcd: %v, %v, %v", names, due, err)
	}
	state := &observed.State{Cluster: external, Pods: []corev1.Pod{starting}}
	names, due, err := WithoutEtcd(t.Context(), state, issued(t), ownedtest.Now())
	if len(names) != 0 || !slices.Equal(due, []time.Time{observed.EtcdDue(&starting)}) || err != nil {
		t.Errorf("a starting replica: %v, %v, %v", names, due, err)
	}
	if _, _, err := WithoutEtcd(t.Context(), state, credentials.Set{}, ownedtest.Now()); err == nil {
		t.Error("unusable credentials")
	}
}

// TestMaintenanceWindow checks why a rollout waits, and when the window opens.
func TestMaintenanceWindow(t *testing.T) {
	for schedule, want := range map[string]string{
		"": "", "0 0 1 1 *": "",
		"0 6 * * *":  "Waiting for the maintenance window at 2026-01-01T06:00:00Z to restart healthy replicas",
		"0 0 31 2 *": "Waiting for a maintenance window; none will ever open", "nonsense": "",
	} {
		cluster := ownedtest.NewCluster(func(c *v1alpha1.ApiServerCluster) {
			if schedule != "" {
				c.Spec.Maintenance.Windows = []v1alpha1.MaintenanceWindow{{
					Schedule: schedule, Duration: metav1.Duration{Duration: time.Hour},
				}}
			}
		})
		x := Steps{Pool: etcd.NewPool()}.newExecutor(Input{
			Observation: Observation{State: &observed.State{Cluster: cluster}}, Now: ownedtest.Now(),
		})
		if held := x.holdRollout(); held != want || x.result.Due.IsZero() == strings.Contains(want, "at 2026") ||
			x.holdDefragmentation() != want {
			t.Errorf("%q: held by %q until %s", schedule, held, x.result.Due)
		}
		x.Replacing = true
		if x.holdDefragmentation() == "" {
			t.Errorf("%q: defragmentations do not wait for the replacement of credentials", schedule)
		}
	}
}

// TestDefragmentBackoff checks that the delay doubles with each failure, up to a limit.
func TestDefragmentBackoff(t *testing.T) {
	for failures, want := range map[int32]time.Duration{
		1: time.Minute, 2: 2 * time.Minute, 4: 8 * time.Minute, 100: time.Hour,
	} {
		if got := defragmentBackoff(failures); got != want {
			t.Errorf("%d failures: %s, want %s", failures, got, want)
		}
	}
	cluster := ownedtest.NewCluster(func(c *v1alpha1.ApiServerCluster) {
		c.Status.Defragmentation = &v1alpha1.DefragmentationStatus{
			Failures: 2, LastFailureTime: &metav1.Time{Time: ownedtest.Now()},
		}
	})
	x := Steps{Pool: etcd.NewPool()}.newExecutor(Input{
		Observation: Observation{State: &observed.State{Cluster: cluster}}, Now: ownedtest.Now(),
	})
	if d := x.defragmentation(); !d.RetryAfter.Equal(ownedtest.Now().Add(2*time.Minute)) || d.Failures != 2 {
		t.Errorf("%+v", d)
	}
}
