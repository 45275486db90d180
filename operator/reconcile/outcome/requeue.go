package outcome

import (
	"errors"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/limited"
	"quorate.dev/operator/membership"
)

const (
	// ResyncInterval is the requeue interval of a cluster without changes. It bounds the age of the database sizes in the
	// status, and the time until an unhealthy member or a certificate that is due is found. quietInterval is the interval
	// if Quiet returns true: all objects that such a cluster depends on are watched.
	ResyncInterval = 30 * time.Second
	quietInterval  = 5 * time.Minute
	// ShortWait is the requeue interval of a cluster that waits for a change, until it has waited for shortWaitPeriod.
	// After that, longWait is the interval.
	ShortWait       = 250 * time.Millisecond
	longWait        = 2 * time.Second
	shortWaitPeriod = time.Minute
	// immediately is the requeue interval after an action. It is not zero, which would mean no requeue.
	immediately = time.Millisecond
)

// NewRetries returns delays after conflicts that begin with ShortWait.
func NewRetries() *limited.Retries { return limited.NewRetries(ShortWait) }

// Quiet reports whether the cluster has no problems, nothing is being changed, and everything that it depends on is
// watched. The objects inside the cluster or in its host that register API groups are not watched, so a cluster that
// has them is never quiet. Neither is a cluster whose database uses more than half of its quota, because no watch
// reports its growth. The runner closes the connections to the etcd of a quiet cluster.
func (o *Outcome) Quiet() bool {
	conditions := o.Cluster.Status.Conditions
	if o.Cluster.IsExtension() || len(o.Cluster.Spec.Aggregation.APIServices) > 0 {
		return false
	}
	return len(o.Input.Errors) == 0 && !o.stale && !o.IntentStored && len(o.Input.Rotations) == 0 &&
		meta.IsStatusConditionTrue(conditions, v1alpha1.Available) &&
		meta.IsStatusConditionFalse(conditions, v1alpha1.Degraded) &&
		meta.IsStatusConditionFalse(conditions, v1alpha1.Progressing) &&
		!meta.IsStatusConditionFalse(conditions, v1alpha1.EtcdQuorum) &&
		!slices.ContainsFunc(o.Cluster.Status.Members, func(m v1alpha1.MemberStatus) bool {
			return m.UnhealthySince != nil || m.DBSize > desired.Quota(o.Cluster)/2
		})
}

// electing reports whether a member has become unhealthy, or the leader unknown, so recently that an election may be in
// progress whose result the status lacks. etcd does not notify clients of elections: without a change of a pod, only
// another reconciliation finds the leader.
func (o *Outcome) electing() bool {
	members := o.Cluster.Status.Members
	lost := slices.ContainsFunc(members, func(m v1alpha1.MemberStatus) bool {
		return m.UnhealthySince != nil && o.Input.Now.Sub(m.UnhealthySince.Time) < shortWaitPeriod
	})
	hasLeader := slices.ContainsFunc(members, func(m v1alpha1.MemberStatus) bool { return m.Role == "leader" })
	return lost || len(members) > 0 && !hasLeader && !o.Cluster.Hibernated()
}

// disarming reports whether members may soon disarm the alarm NOSPACE, because a member was defragmented recently.
func (o *Outcome) disarming() bool {
	return meta.IsStatusConditionFalse(o.Cluster.Status.Conditions, v1alpha1.EtcdSpaceAvailable) &&
		slices.ContainsFunc(o.Cluster.Status.Members, func(m v1alpha1.MemberStatus) bool {
			return m.LastDefragmentTime != nil && o.Input.Now.Sub(m.LastDefragmentTime.Time) < shortWaitPeriod
		})
}

// Result returns when the cluster is reconciled again, in terms of controller-runtime.
//
// Errors take precedence: controller-runtime repeats the reconciliation with the backoff of the rate limiter
// (watches.SetUp). Then a conflict, with its own growing delay, since it is no error. Then changes of this
// reconciliation, whose effect the next one observes. An action that etcd rejected is not repeated immediately, because
// etcd needs time. Waiting for a maintenance window is no reason for frequent reconciliations.
func (o *Outcome) Result(retries *limited.Retries, clock clock.PassiveClock) (ctrl.Result, error) {
	if len(o.Input.Errors) > 0 {
		return ctrl.Result{}, errors.Join(o.Input.Errors...)
	}
	name := client.ObjectKeyFromObject(o.Cluster)
	if o.stale {
		return ctrl.Result{RequeueAfter: retries.Conflict(name)}, nil
	}
	retries.Forget(name)
	switch a := o.Input.Action; {
	case o.IntentStored, o.Restored:
		return ctrl.Result{RequeueAfter: immediately}, nil
	case o.Input.Rejected == nil && a.Kind != membership.Wait && a.Kind != "":
		return ctrl.Result{RequeueAfter: immediately}, nil
	case a.Kind == membership.Wait && a.Reason == o.Input.Held && a.Reason != "": // a window may open only days later
	case a.Kind != "" && (a.Kind != membership.Wait || a.Reason != ""), o.Rotating:
		return ctrl.Result{RequeueAfter: o.waitInterval(clock)}, nil
	}
	return ctrl.Result{RequeueAfter: o.untilDue()}, nil
}

// untilDue returns the time until something becomes due, limited to the resync interval that applies to the cluster. It
// is never zero, which would mean no reconciliation.
func (o *Outcome) untilDue() time.Duration {
	interval := ResyncInterval
	switch {
	case o.Quiet():
		interval = quietInterval
	case o.electing(), o.disarming():
		interval = longWait
	}
	if o.next.IsZero() {
		return interval
	}
	return max(min(o.next.Sub(o.Input.Now), interval), immediately)
}

// waitInterval returns ShortWait or longWait, by the time since the condition Progressing has last changed. A change
// that usually takes seconds, such as the start of a member, is thus observed without delay, and one that hangs costs
// few requests.
func (o *Outcome) waitInterval(clock clock.PassiveClock) time.Duration {
	for _, c := range o.Cluster.Status.Conditions {
		if c.Type == v1alpha1.Progressing && clock.Since(c.LastTransitionTime.Time) < shortWaitPeriod {
			return ShortWait
		}
	}
	return longWait
}
