package outcome

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/membership"
	"quorate.dev/operator/observed"
	"quorate.dev/operator/reconcile/owned"
	"quorate.dev/operator/reconcile/owned/ownedtest"
	"quorate.dev/operator/reconcile/stages"
	"quorate.dev/operator/status"
)

// healthy is a change of a cluster: its conditions have no problems.
func healthy(c *v1alpha1.ApiServerCluster) {
	c.Status.Members = []v1alpha1.MemberStatus{{Name: "demo-0", Role: "leader"}}
	for condition, value := range map[string]metav1.ConditionStatus{
		v1alpha1.Available: metav1.ConditionTrue, v1alpha1.Degraded: metav1.ConditionFalse,
		v1alpha1.Progressing: metav1.ConditionFalse,
	} {
		c.Status.Conditions = append(c.Status.Conditions, metav1.Condition{
			Type: condition, Status: value, LastTransitionTime: metav1.NewTime(ownedtest.Now().Add(-time.Hour)),
		})
	}
}

// set is a change of a cluster: a condition has a value since a while.
func set(condition string, value metav1.ConditionStatus, ago time.Duration) func(*v1alpha1.ApiServerCluster) {
	return func(c *v1alpha1.ApiServerCluster) {
		c.Status.Conditions = slices.DeleteFunc(c.Status.Conditions, func(old metav1.Condition) bool {
			return old.Type == condition
		})
		c.Status.Conditions = append(c.Status.Conditions, metav1.Condition{
			Type: condition, Status: value, LastTransitionTime: metav1.NewTime(ownedtest.Now().Add(-ago)),
		})
	}
}

// TestResult checks when a cluster is reconciled again.
func TestResult(t *testing.T) {
	ago := func(d time.Duration) *metav1.Time { return &metav1.Time{Time: ownedtest.Now().Add(-d)} }
	waiting := membership.Action{Kind: membership.Wait, Reason: "Waiting for demo-0"}
	for name, test := range map[string]struct {
		cluster func(*v1alpha1.ApiServerCluster)
		outcome func(*Outcome)
		want    time.Duration // 0: an error
	}{
		"quiet":         {nil, nil, quietInterval},
		"error":         {nil, func(o *Outcome) { o.Done(t.Context(), "step", errors.New("broken")) }, 0},
		"conflict":      {nil, func(o *Outcome) { o.Done(t.Context(), "step", owned.ErrStale) }, ShortWait},
		"intent":        {nil, func(o *Outcome) { o.IntentStored = true }, immediately},
		"stage entered": {nil, func(o *Outcome) { o.AddRotations(stages.Result{Entered: true}) }, immediately},
		"restored":      {nil, func(o *Outcome) { o.Restored = true }, immediately},
		"action": {
			nil, func(o *Outcome) { o.Input.Action = membership.Action{Kind: membership.CreatePod} }, immediately,
		},
		"rejected action": {nil, func(o *Outcome) {
			o.Input.Action, o.Input.Rejected = membership.Action{Kind: membership.Promote}, errors.New("not ready")
		}, longWait},
		"waiting": {
			set(v1alpha1.Progressing, metav1.ConditionTrue, 0), func(o *Outcome) { o.Input.Action = waiting }, ShortWait,
		},
		"waiting for long": {
			set(v1alpha1.Progressing, metav1.ConditionTrue, time.Hour), func(o *Outcome) { o.Input.Action = waiting }, longWait,
		},
		"outside of window": {
			set(v1alpha1.Progressing, metav1.ConditionTrue, time.Hour), func(o *Outcome) {
				o.Input.Action, o.Input.Held = waiting, waiting.Reason
			}, ResyncInterval,
		},
		"rotation waits": {
			nil, func(o *Outcome) { o.AddRotations(stages.Result{Waiting: true, Rotations: []status.Rotation{{}}}) }, longWait,
		},
		"due soon": {nil, func(o *Outcome) {
			o.RequeueAt(time.Time{}, ownedtest.Now().Add(-time.Hour), ownedtest.Now().Add(time.Second))
		}, time.Second},
		"due later": {nil, func(o *Outcome) { o.RequeueAt(ownedtest.Now().Add(time.Hour)) }, quietInterval},
		"degraded":  {set(v1alpha1.Degraded, metav1.ConditionTrue, 0), nil, ResyncInterval},
		"extension": {
			func(c *v1alpha1.ApiServerCluster) { c.Spec.Mode = v1alpha1.ModeExtension }, nil, ResyncInterval,
		},
		"half of the quota": {
			func(c *v1alpha1.ApiServerCluster) { c.Status.Members[0].DBSize = desired.Quota(c) }, nil, ResyncInterval,
		},
		"unhealthy member": {
			func(c *v1alpha1.ApiServerCluster) { c.Status.Members[0].UnhealthySince = ago(time.Hour) }, nil, ResyncInterval,
		},
		"election": {
			func(c *v1alpha1.ApiServerCluster) { c.Status.Members[0].UnhealthySince = ago(time.Second) }, nil, longWait,
		},
		"no leader": {func(c *v1alpha1.ApiServerCluster) {
			set(v1alpha1.EtcdQuorum, metav1.ConditionFalse, 0)(c)
			c.Status.Members[0].Role = "follower"
		}, nil, longWait},
		"alarm of a defragmented member": {func(c *v1alpha1.ApiServerCluster) {
			set(v1alpha1.EtcdSpaceAvailable, metav1.ConditionFalse, 0)(c)
			set(v1alpha1.Degraded, metav1.ConditionTrue, 0)(c)
			c.Status.Members[0].LastDefragmentTime = ago(time.Second)
		}, nil, longWait},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := ownedtest.NewCluster(healthy)
			if test.cluster != nil {
				test.cluster(cluster)
			}
			o := New(cluster, nil, ownedtest.Now())
			if test.outcome != nil {
				test.outcome(o)
			}
			result, err := o.Result(NewRetries(), clocktesting.NewFakeClock(ownedtest.Now()))
			if (err != nil) != (test.want == 0) || result.RequeueAfter != test.want {
				t.Errorf("after %s, %v, want %s", result.RequeueAfter, err, test.want)
			}
		})
	}
}

// TestQuiet checks that a cluster is not quiet while anything is to be done for it, although its conditions are good.
func TestQuiet(t *testing.T) {
	for name, change := range map[string]func(*Outcome){
		"quiet":      func(*Outcome) {},
		"error":      func(o *Outcome) { o.Failed(t.Context(), errors.New("broken")) },
		"conflict":   func(o *Outcome) { o.Failed(t.Context(), owned.ErrStale) },
		"new stage":  func(o *Outcome) { o.AddRotations(stages.Result{Entered: true}) },
		"a rotation": func(o *Outcome) { o.AddRotations(stages.Result{Rotations: []status.Rotation{{}}}) },
		"API groups in the cluster": func(o *Outcome) {
			o.Cluster.Spec.Aggregation.APIServices = make([]v1alpha1.AggregatedAPIService, 1)
		},
	} {
		o := New(ownedtest.NewCluster(healthy), nil, ownedtest.Now())
		change(o)
		if o.Quiet() != (name == "quiet") {
			t.Errorf("%s: quiet is %t", name, o.Quiet())
		}
	}
}

// TestConflicts checks that the delay grows with each conflict, and begins again after a success.
func TestConflicts(t *testing.T) {
	retries, clock := NewRetries(), clocktesting.NewFakeClock(ownedtest.Now())
	var delays []time.Duration
	for i := range 4 {
		o := New(ownedtest.NewCluster(healthy), nil, ownedtest.Now())
		if i != 2 {
			o.Failed(t.Context(), fmt.Errorf("write: %w", owned.ErrStale))
		}
		result, err := o.Result(retries, clock)
		if err != nil {
			t.Fatal(err)
		}
		delays = append(delays, result.RequeueAfter)
	}
	if delays[1] <= delays[0] || delays[3] != delays[0] {
		t.Errorf("delays %v", delays)
	}
}

// TestDeletion checks that a cluster is reconciled again while it waits for its final backup, which is not watched.
func TestDeletion(t *testing.T) {
	for reason, want := range map[string]time.Duration{
		v1alpha1.ReasonWaitingForFinalBackup: longWait, v1alpha1.ReasonDeletionProtected: quietInterval,
	} {
		o := New(ownedtest.NewCluster(healthy), &status.Wait{Reason: reason}, ownedtest.Now())
		if result, err := o.Result(NewRetries(), clocktesting.NewFakeClock(ownedtest.Now())); err != nil ||
			result.RequeueAfter != want {
			t.Errorf("%s: after %s, %v", reason, result.RequeueAfter, err)
		}
	}
}

// TestMayChange checks what prevents changes of a cluster.
func TestMayChange(t *testing.T) {
	o := New(ownedtest.NewCluster(), nil, ownedtest.Now())
	o.Lost(nil)
	if !o.MayChange() {
		t.Error("a cluster without problems may not be changed")
	}
	o.Lost(errors.New("secret demo-client-ca is missing"))
	o.Lost(nil)
	invalid, paused := New(ownedtest.NewCluster(), nil, ownedtest.Now()), New(ownedtest.NewCluster(), nil, ownedtest.Now())
	invalid.Input.Invalid = errors.New("spec.replicas")
	paused.Cluster.Annotations = map[string]string{
		v1alpha1.PausedUntilAnnotation: ownedtest.Now().Add(time.Hour).Format(time.RFC3339),
	}
	if o.MayChange() || invalid.MayChange() || paused.MayChange() {
		t.Errorf("lost: %t, invalid: %t, paused: %t", o.MayChange(), invalid.MayChange(), paused.MayChange())
	}
}

// TestMetrics checks that a failed reconciliation is counted at its time.
func TestMetrics(t *testing.T) {
	o := New(ownedtest.NewCluster(), nil, ownedtest.Now())
	if m := o.Metrics(); !m.Failed.IsZero() || m.Cluster != o.Cluster {
		t.Errorf("%+v", m)
	}
	o.Failed(t.Context(), errors.New("broken"))
	if m := o.Metrics(); !m.Failed.Equal(ownedtest.Now()) {
		t.Errorf("%+v", m)
	}
}

// TestPublish checks that the status is written once, that each changed condition has an event, and that expected
// changes are no warnings.
func TestPublish(t *testing.T) {
	h := ownedtest.NewHost(t, ownedtest.NewCluster())
	publish := func(errs ...error) error {
		cluster := h.Cluster()
		before, o := cluster.DeepCopy(), New(cluster, nil, ownedtest.Now())
		o.Input.Errors, o.Input.State = errs, &observed.State{Cluster: cluster}
		return o.Publish(t.Context(), h.Objects, before)
	}
	h.Must(publish())
	if events := strings.Join(h.Events(), "\n"); strings.Contains(events, "Warning") ||
		!strings.Contains(events, "Available is False") {
		t.Errorf("first events %q", events)
	}
	h.Refuse = func(string) error { return ownedtest.ErrUnavailable }
	h.Must(publish())
	if err := publish(errors.New("broken")); !errors.Is(err, ownedtest.ErrUnavailable) || len(h.Events()) != 0 {
		t.Errorf("a failed write: %v", err)
	}
	h.Refuse = nil
	h.Must(publish(errors.New("broken")))
	if events := h.Events(); len(events) != 1 || !strings.HasPrefix(events[0], "Warning") ||
		!strings.Contains(events[0], "Degraded is True") {
		t.Errorf("events %q", events)
	}
}

// TestPublishWithFields checks that fields that a step has set without writing them are written with the status, and
// that a status that another operator has changed is a conflict.
func TestPublishWithFields(t *testing.T) {
	h := ownedtest.NewHost(t, ownedtest.NewCluster())
	cluster := h.Cluster()
	before, o := cluster.DeepCopy(), New(cluster, nil, ownedtest.Now())
	cluster.Status.Upgrade = &v1alpha1.UpgradeStatus{Image: "quorate:2", Message: "waiting"}
	outdated := New(cluster.DeepCopy(), nil, ownedtest.Now())
	h.Must(o.Publish(t.Context(), h.Objects, before))
	if got := h.Cluster().Status.Upgrade; got == nil || got.Message != "waiting" {
		t.Errorf("status.upgrade %+v", got)
	}
	outdated.Cluster.Status.Upgrade.Message = "another"
	if err := outdated.Publish(t.Context(), h.Objects, before); !owned.Stale(err) {
		t.Errorf("an outdated operator: %v", err)
	}
}
