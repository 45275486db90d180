package members

import (
	"context"
	"fmt"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/membership"
)

// defragmentRetry is the delay before the next defragmentation after a failed one. It doubles with each further
// failure, up to maxDefragmentRetry.
const (
	defragmentRetry    = time.Minute
	maxDefragmentRetry = time.Hour
)

// defragmentation returns the part of membership.Observation that decides on defragmentations. The member in the status
// may be defragmented by a former process of the operator: then the pool has no record of it, and membership.Plan sends
// the request again, or records that the defragmentation was interrupted. A result of the pool for another member
// belongs to a former defragmentation and is ignored.
func (x *executor) defragmentation() membership.Defragmentation {
	d := membership.Defragmentation{Now: x.Now, Held: x.holdDefragmentation()}
	d.Enabled, d.FreePercent, d.MinFree, d.Interval = x.cluster.DefragmentationLimits()
	if recorded := x.cluster.Status.Defragmentation; recorded != nil {
		d.Member, d.Failures = recorded.Member, int(recorded.Failures)
		if recorded.Failures > 0 && recorded.LastFailureTime != nil {
			d.RetryAfter = recorded.LastFailureTime.Add(defragmentBackoff(recorded.Failures))
		}
	}
	if started := x.Pool.Defragmentation(client.ObjectKeyFromObject(x.cluster).String()); started != nil &&
		started.Member == d.Member {
		d.Running, d.Finished = !started.Finished, started.Finished
		if started.Err != nil {
			d.Failure = started.Err.Error()
		}
	}
	return d
}

func defragmentBackoff(failures int32) time.Duration {
	backoff := defragmentRetry
	for n := int32(1); n < failures && backoff < maxDefragmentRetry; n++ {
		backoff *= 2
	}
	return min(backoff, maxDefragmentRetry)
}

// holdDefragmentation returns why defragmentations that are not urgent wait, or "".
func (x *executor) holdDefragmentation() string {
	switch {
	case x.result.Held != "":
		return x.result.Held
	case x.Replacing:
		return "Waiting for the replacement of credentials"
	}
	return ""
}

// writeDefragmentation records the start or the end of a defragmentation in the status, and starts it after that. The
// write fails with a conflict if the cluster was updated since it was read, so that an operator with an outdated view
// cannot defragment a second member at the same time.
//
// A member that is defragmented does not respond, and etcd finishes the defragmentation also if the operator stops.
// Without the record, the next operator could begin with another member, and two members without responses could cost
// the quorum. If the operator stops between the write and the request, the next one finds the record and sends the
// request (ResumeDefragmentation).
func (x *executor) writeDefragmentation(ctx context.Context, a membership.Action) error {
	before := x.cluster.DeepCopy()
	if x.cluster.Status.Defragmentation == nil {
		x.cluster.Status.Defragmentation = &v1alpha1.DefragmentationStatus{}
	}
	d, now := x.cluster.Status.Defragmentation, &metav1.Time{Time: x.Now}
	switch {
	case a.Kind != membership.FinishDefragmentation:
		d.Member, d.StartTime = a.Name, now
	case a.Reason != "":
		*d = v1alpha1.DefragmentationStatus{Failures: d.Failures + 1, LastFailureTime: now, Message: a.Reason}
	default:
		x.cluster.Status.Defragmentation = nil
		for i := range x.cluster.Status.Members {
			if m := &x.cluster.Status.Members[i]; m.Name == a.Name {
				m.LastDefragmentTime = now
			}
		}
	}
	key := client.ObjectKeyFromObject(x.cluster)
	if a.Kind == membership.StartDefragmentation {
		// If the response to the patch is lost, the result of an earlier defragmentation of the member would be taken for
		// this one's.
		x.Pool.ForgetDefragmentation(key.String())
	}
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := x.Client.Status().Patch(ctx, x.cluster, patch); err != nil {
		return fmt.Errorf("record the defragmentation: %w", err)
	}
	if a.Kind == membership.FinishDefragmentation {
		x.Pool.ForgetDefragmentation(key.String())
		x.result.Defragmented = append(x.result.Defragmented, a.Reason == "")
		return nil
	}
	for _, endpoint := range x.State.Endpoints() {
		if endpoint.Name == a.Name {
			x.Pool.Defragment(key.String(), endpoint, a.ID, strconv.Itoa(desired.ClientPort), x.Credentials.Etcd(x.cluster))
		}
	}
	return nil
}
