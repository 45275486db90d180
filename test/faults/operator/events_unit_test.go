package operator

import (
	"errors"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/operator/api/v1alpha1"
)

// replaced is a witness of the replacement of demo-1 by another member.
func replaced(now time.Time) *witness {
	status := func(id, role string, degraded metav1.ConditionStatus) v1alpha1.ApiServerClusterStatus {
		return v1alpha1.ApiServerClusterStatus{
			Members:    []v1alpha1.MemberStatus{{Name: "demo-0", ID: "a", Role: "leader"}, {Name: "demo-1", ID: id, Role: role}},
			Conditions: []metav1.Condition{{Type: v1alpha1.Degraded, Status: degraded, Reason: v1alpha1.ReasonPodsFailing}},
		}
	}
	w := &witness{}
	w.note(status("b", "voter", metav1.ConditionFalse), now.Add(-time.Minute))
	w.note(status("c", "learner", metav1.ConditionTrue), now.Add(-50*time.Second))
	w.note(status("c", "voter", metav1.ConditionTrue), now)
	return w
}

// TestWitness: a change without an event and an event without a change are found.
func TestWitness(t *testing.T) {
	now := time.Now()
	correct := []announcement{
		{reason: v1alpha1.ReasonMemberRemoved, member: "demo-1"}, {reason: v1alpha1.ReasonLearnerAdded, member: "demo-1"},
		{reason: v1alpha1.ReasonPodsFailing, action: v1alpha1.Degraded, note: "Degraded is True: a pod fails"},
	}
	with := func(reason, member string, times ...time.Time) []announcement {
		return append(append([]announcement{}, correct...), announcement{reason: reason, member: member, times: times})
	}
	loss := []error{errors.New("lost")}
	for name, test := range map[string]struct {
		all     []announcement
		silence time.Time
		lost    []error
		faults  int
	}{
		"everything is announced":          {all: correct},
		"nothing is announced":             {faults: 3},
		"the operator was killed":          {silence: now.Add(-55 * time.Second)},
		"the operator was killed later":    {silence: now, faults: 3},
		"a promotion":                      {all: with(v1alpha1.ReasonLearnerPromoted, "demo-1")},
		"a promotion that was none":        {all: with(v1alpha1.ReasonLearnerPromoted, "demo-2"), faults: 1},
		"a removal that was none":          {all: with(v1alpha1.ReasonMemberRemoved, "demo-0"), faults: 1},
		"a learner that was none":          {all: with(v1alpha1.ReasonLearnerAdded, "demo-0"), faults: 1},
		"a loss that was none":             {all: with(v1alpha1.ReasonAcknowledgedWritesLost, ""), faults: 1},
		"a loss":                           {all: with(v1alpha1.ReasonAcknowledgedWritesLost, ""), lost: loss},
		"an outage that was none":          {all: with(v1alpha1.ReasonQuorumLost, "", now), faults: 1},
		"an outage that was a disturbance": {all: with(v1alpha1.ReasonQuorumLost, "", time.Time{})},
	} {
		t.Run(name, func(t *testing.T) {
			w := replaced(now)
			if !test.silence.IsZero() {
				w.silences = append(w.silences, test.silence)
			}
			faults := append(w.missing(test.all), w.untrue(test.all, test.lost, time.Time.IsZero)...)
			if len(faults) != test.faults {
				t.Errorf("found %v, want %d faults", faults, test.faults)
			}
		})
	}
}
