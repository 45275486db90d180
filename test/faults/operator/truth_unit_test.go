package operator

import (
	"errors"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/operator/api/v1alpha1"
)

// TestClaims: an operator that reports health over a loss, an outage that it does not report, and an outage that is
// none are found.
func TestClaims(t *testing.T) {
	healthy := cluster(metav1.ConditionFalse, metav1.ConditionTrue, v1alpha1.ReasonMembersHealthy)
	lost := cluster(metav1.ConditionTrue, metav1.ConditionFalse, v1alpha1.ReasonQuorumLost)
	loss := []error{errors.New("a write is gone")}
	long := func(d *disturbance) { d.begin = d.end.Add(-outageLength) }
	for name, test := range map[string]struct {
		status *v1alpha1.ApiServerCluster
		outage func(*disturbance) // nil: none
		losses []error
		faults int
	}{
		"nothing happens":                {status: healthy},
		"health over a loss":             {status: healthy, losses: loss, faults: 1},
		"a loss that is reported":        {status: lost, outage: long, losses: loss},
		"an outage":                      {status: lost, outage: long},
		"an outage not reported":         {status: healthy, outage: long, faults: 1},
		"a short outage":                 {status: healthy, outage: func(*disturbance) {}},
		"an outage without the operator": {status: healthy, outage: func(d *disturbance) { long(d); d.silent = true }},
		"a report without an outage":     {status: lost, faults: 1},
	} {
		t.Run(name, func(t *testing.T) {
			c := &claims{said: map[string]int{}}
			if test.outage != nil {
				c.disturb("all members were killed", true, false)()
				test.outage(c.disturbances[0])
			}
			c.note(test.status, time.Now())
			if faults := c.check(test.losses); len(faults) != test.faults {
				t.Errorf("found %v, want %d faults", faults, test.faults)
			}
		})
	}
}

func cluster(degraded, quorum metav1.ConditionStatus, reason string) *v1alpha1.ApiServerCluster {
	return &v1alpha1.ApiServerCluster{Status: v1alpha1.ApiServerClusterStatus{Conditions: []metav1.Condition{
		{Type: v1alpha1.Degraded, Status: degraded}, {Type: v1alpha1.EtcdQuorum, Status: quorum, Reason: reason},
	}}}
}
